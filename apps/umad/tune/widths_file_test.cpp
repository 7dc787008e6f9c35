#include "umad/tune/widths_file.h"

#include <filesystem>
#include <format>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace uma::umad {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const WidthsOrigin kOrigin{.model_identity = "0123456789abcdef0123456789abcdef",
                           .machine = {.cpu = "Some(R) CPU @ 2.00GHz", .cores = 6, .library = "libllama 0.7.0"},
                           .backends = "CPU : SSE3 = 1 | AVX = 1"};
constexpr char kContext[] = "0123|0.7.0|usual|f16 f16|flash on|split";

sched::WidthTimes times(double first) {
  sched::WidthTimes ms{};
  for (std::size_t i = 0; i < ms.size(); ++i) ms[i] = first + 1.25 * static_cast<double>(i);
  return ms;
}

std::string problem_of_widths(const std::string& text) {
  const auto parsed = parse_widths(text, kOrigin);
  return parsed ? "none" : parsed.error();
}

std::string with_change(std::string text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(WidthsText, ComesBackAsItWasWritten) {
  const std::vector<WidthsEntry> entries{{kContext, 1, times(4.5)}, {"another \"context\"", 2, times(0.0125)}};
  EXPECT_EQ(parse_widths(widths_text(kOrigin, entries), kOrigin).value(), entries);
}

TEST(WidthsText, OfAnotherOriginDoesNotFit) {
  const auto problem_with = [](auto change) {
    WidthsOrigin other = kOrigin;
    change(other);
    return problem_of_widths(widths_text(other, {{kContext, 1, times(1)}}));
  };
  EXPECT_THAT(problem_with([](WidthsOrigin& o) { o.model_identity += '0'; }), HasSubstr("another model"));
  EXPECT_THAT(problem_with([](WidthsOrigin& o) { o.machine.cpu = "Other"; }), HasSubstr("another machine (Other, 6 cores)"));
  EXPECT_THAT(problem_with([](WidthsOrigin& o) { o.machine.cores = 5; }), HasSubstr("another machine"));
  EXPECT_THAT(problem_with([](WidthsOrigin& o) { o.machine.library = "libllama 0.7.1"; }), HasSubstr("with libllama 0.7.1"));
  EXPECT_THAT(problem_with([](WidthsOrigin& o) { o.backends = "CPU : SSE3 = 1"; }), HasSubstr("other instructions"));
}

TEST(WidthsText, DamageIsNoticed) {
  const std::string whole = widths_text(kOrigin, {{kContext, 1, times(1)}});
  for (const auto& [what, with] : {std::pair{"threads: 1", "threads: 0"},
                                   {"threads: 1", "thread: 1"},
                                   {"[1.0000, ", "["},
                                   {"[1.0000, ", "[0, "},
                                   {"[1.0000, ", "[-1, "},
                                   {"[1.0000, ", "[nan, "},
                                   {"[1.0000, ", "[inf, "},
                                   {"[1.0000, ", "[1e-200, "},
                                   {"[1.0000, ", "[0.0002, 100, "},
                                   {"[1.0000, ", "[[1.0000], "},
                                   {"measured:", "measured: 1\nother:"},
                                   {"version: 1", "version: x"},
                                   {"version: 1", "version: 1\nmore: 1"},
                                   {"cores: 6", "cores: many"}}) {
    EXPECT_THAT(problem_of_widths(with_change(whole, what, with)), StartsWith("it is damaged: ")) << what << " -> " << with;
  }
  EXPECT_THAT(problem_of_widths(with_change(whole, "version: 1", "version: 2")), HasSubstr("newer umad"));
  // A cut between two entries would only lose entries; here there is one.
  for (std::size_t bytes = 0; bytes + 1 < whole.size(); ++bytes)
    EXPECT_NE(problem_of_widths(whole.substr(0, bytes)), "none") << bytes;
}

class WidthsFiles : public ::testing::Test {
 protected:
  WidthsFiles() : folder_(std::filesystem::temp_directory_path() / std::format("uma-widths-{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~WidthsFiles() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path() const { return widths_path(folder_.string(), kOrigin); }
  [[nodiscard]] std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path()).rdbuf();
    return text.str();
  }
  WidthsFile open(const WidthsOrigin& origin = kOrigin) { return {folder_.string(), origin}; }

  const std::filesystem::path folder_;
};

TEST_F(WidthsFiles, AreFoundByTheNextProcess) {
  open().keep(kContext, 2, times(4));
  struct stat facts{};
  ASSERT_EQ(::stat(path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  const WidthsFile next = open();
  EXPECT_EQ(next.find(kContext, 2), times(4));
  EXPECT_EQ(next.find(kContext, 1), std::nullopt);
  EXPECT_EQ(next.find("another context", 2), std::nullopt);
}

TEST_F(WidthsFiles, HoldSeveralContextsAndThreads) {
  WidthsFile file = open();
  file.keep(kContext, 1, times(1));
  file.keep(kContext, 2, times(2));
  file.keep("another", 1, times(3));
  file.keep(kContext, 1, times(4));
  const WidthsFile next = open();
  EXPECT_EQ(next.find(kContext, 1), times(4));
  EXPECT_EQ(next.find(kContext, 2), times(2));
  EXPECT_EQ(next.find("another", 1), times(3));
}

TEST_F(WidthsFiles, TheOldestEntryGivesWay) {
  WidthsFile file = open();
  for (std::int32_t i = 1; i <= static_cast<std::int32_t>(WidthsFile::kEntriesMax) + 1; ++i) file.keep(kContext, i, times(i));
  const WidthsFile next = open();
  EXPECT_EQ(next.find(kContext, 1), std::nullopt);
  EXPECT_EQ(next.find(kContext, 2), times(2));
}

TEST_F(WidthsFiles, ThatDoNotFitAreReplaced) {
  open().keep(kContext, 1, times(1));
  WidthsOrigin updated = kOrigin;
  updated.machine.library = "libllama 0.7.1";
  WidthsFile file = open(updated);
  EXPECT_EQ(file.find(kContext, 1), std::nullopt);
  file.keep(kContext, 1, times(2));
  EXPECT_EQ(open(updated).find(kContext, 1), times(2));

  std::ofstream(path()) << "damaged: [";
  WidthsFile damaged = open();
  EXPECT_EQ(damaged.find(kContext, 1), std::nullopt);
  damaged.keep(kContext, 1, times(3));
  EXPECT_EQ(open().find(kContext, 1), times(3));
}

TEST_F(WidthsFiles, WhereNothingCanBeWrittenServeThisProcess) {
  std::filesystem::remove_all(folder_);
  std::ofstream(folder_.string()) << "a file in place of the folder";
  WidthsFile file = open();
  file.keep(kContext, 1, times(1));
  EXPECT_EQ(file.find(kContext, 1), times(1));
  EXPECT_EQ(open().find(kContext, 1), std::nullopt);
}

}  // namespace
}  // namespace uma::umad
