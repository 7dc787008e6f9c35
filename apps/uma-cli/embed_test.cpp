#include "uma-cli/embed.h"

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "uma-cli/fake_daemon.h"
#include "uma-cli/fields.h"

namespace uma::cli {
namespace {

using ::testing::HasSubstr;

// Gives each text the vector [number of bytes], and each document its index as score, the last first; collects what was asked.
FakeDaemon::Script serve_vectors(std::vector<boost::json::object>& requests) {
  return [&requests](FakeConnection& connection) {
    for (boost::json::object request = connection.read(); !request.empty(); request = connection.read()) {
      if (text_field(request, "type") == "embed") {
        boost::json::array vectors;
        for (const boost::json::value& text : array_field(request, "texts")) {
          vectors.push_back(boost::json::array{static_cast<std::int64_t>(text.as_string().size())});
        }
        connection.answer(request, "embedding", {{"embeddings", vectors}});
      } else {
        boost::json::array results;
        for (std::size_t i = array_field(request, "documents").size(); i-- > 0;) {
          results.push_back(boost::json::object{{"index", i}, {"score", 0.5 * static_cast<double>(i)}});
        }
        connection.answer(request, "rerank", {{"results", results}});
      }
      requests.push_back(std::move(request));
    }
  };
}

class EmbedTest : public ::testing::Test {
 protected:
  Result<void> embed(const EmbedOptions& options, bool is_terminal = false) {
    return with_client(is_terminal,
                       [&](Client& client, Output& output) { return run_embed(client, options, output, interrupts_); });
  }
  Result<void> rerank(const RerankOptions& options, bool is_terminal = false) {
    return with_client(is_terminal,
                       [&](Client& client, Output& output) { return run_rerank(client, options, output, interrupts_); });
  }
  template <class RunT>
  Result<void> with_client(bool is_terminal, RunT run) {
    FakeDaemon daemon({serve_vectors(requests_)});
    Screen screen(is_terminal, interrupts_);
    auto client = Client::connect(daemon.path(), interrupts_);
    EXPECT_TRUE(client);
    auto done = run(**client, screen.output());
    shown_ = screen.text();
    return done;
  }

  Interrupts interrupts_;
  std::vector<boost::json::object> requests_;
  std::string shown_;
};

TEST_F(EmbedTest, PrintsALinePerText) {
  EmbedOptions options;
  options.common.texts = {"ab", "c"};
  options.common.model = "m";
  options.task = "query";
  options.dimensions = 7;
  ASSERT_TRUE(embed(options));
  EXPECT_EQ(shown_, "{\"text\":\"ab\",\"embedding\":[2]}\n{\"text\":\"c\",\"embedding\":[1]}\n");
  ASSERT_EQ(requests_.size(), 1u);
  EXPECT_EQ(text_field(requests_[0], "model"), "m");
  EXPECT_EQ(text_field(requests_[0], "task"), "query");
  EXPECT_EQ(int_field(requests_[0], "dimensions"), 7);
  EXPECT_EQ(int_field(requests_[0], "deadline_ms"), 60'000);
  EXPECT_FALSE(requests_[0].contains("normalize"));
}

TEST_F(EmbedTest, SendsManyTextsInSeveralRequests) {
  EmbedOptions options;
  for (int i = 0; i < 150; ++i) options.common.texts.emplace_back("text " + std::to_string(i));
  options.common.texts.emplace_back(300'000, 'x');
  options.common.texts.emplace_back(300'000, 'y');
  ASSERT_TRUE(embed(options));
  EXPECT_EQ(std::ranges::count(shown_, '\n'), 152);
  ASSERT_EQ(requests_.size(), 4u);
  EXPECT_EQ(array_field(requests_[0], "texts").size(), 64u);
  EXPECT_EQ(array_field(requests_[3], "texts").size(), 1u);
}

TEST_F(EmbedTest, ShowsATableOnATerminal) {
  EmbedOptions options;
  options.common.texts = {"a\nb", std::string(100, 'x')};
  ASSERT_TRUE(embed(options, true));
  EXPECT_THAT(shown_, HasSubstr("a^Jb"));
  EXPECT_THAT(shown_, HasSubstr("…"));
  EXPECT_THAT(shown_, HasSubstr("100.0000"));
}

TEST_F(EmbedTest, ReadsTheLinesOfAFile) {
  const std::string path = ::testing::TempDir() + "uma_embed_test.txt";
  std::ofstream(path) << "one\r\n\ntwo";
  EmbedOptions options;
  options.common.file = path;
  ASSERT_TRUE(embed(options));
  EXPECT_EQ(boost::json::serialize(array_field(requests_.at(0), "texts")), R"(["one","two"])");
  options.common.texts = {"three"};
  EXPECT_EQ(embed(options).error().exit_code, ExitCode::usage);
  std::remove(path.c_str());
  options.common.texts.clear();
  EXPECT_EQ(embed(options).error().exit_code, ExitCode::usage);
}

TEST_F(EmbedTest, TextThatIsNoTextIsRefused) {
  EmbedOptions options;
  options.common.texts = {"\xff"};
  EXPECT_EQ(embed(options).error().exit_code, ExitCode::usage);
  EXPECT_TRUE(requests_.empty());
}

TEST_F(EmbedTest, PrintsDocumentsByTheirScores) {
  RerankOptions options;
  options.common.texts = {"a", "b"};
  options.common.is_background = true;
  options.query = "q";
  options.top_n = 5;
  ASSERT_TRUE(rerank(options));
  EXPECT_EQ(shown_, "{\"index\":1,\"score\":0.5,\"text\":\"b\"}\n{\"index\":0,\"score\":0,\"text\":\"a\"}\n");
  EXPECT_EQ(text_field(requests_[0], "class"), "background");
  EXPECT_FALSE(requests_[0].contains("deadline_ms"));
  EXPECT_EQ(int_field(requests_[0], "top_n"), 5);
  ASSERT_TRUE(rerank(options, true));
  EXPECT_THAT(shown_, HasSubstr("0.5000"));
}

TEST_F(EmbedTest, AnAnswerThatDoesNotFitIsAProtocolError) {
  FakeDaemon daemon({[](FakeConnection& connection) {
    connection.answer(connection.read(), "embedding", {{"embeddings", boost::json::array{1}}});
    connection.answer(connection.read(), "rerank",
                      {{"results", boost::json::array{boost::json::object{{"index", 9}, {"score", 1}}}}});
  }});
  Screen screen(false, interrupts_);
  auto client = Client::connect(daemon.path(), interrupts_);
  ASSERT_TRUE(client);
  EmbedOptions embedding;
  embedding.common.texts = {"a"};
  EXPECT_EQ(run_embed(**client, embedding, screen.output(), interrupts_).error().exit_code, ExitCode::protocol);
  RerankOptions reranking;
  reranking.common.texts = {"a"};
  reranking.query = "q";
  EXPECT_EQ(run_rerank(**client, reranking, screen.output(), interrupts_).error().exit_code, ExitCode::protocol);
}

}  // namespace
}  // namespace uma::cli
