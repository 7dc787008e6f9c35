// Exported and imported files, in parts.
#include <chrono>
#include <format>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "base/base64.h"
#include "server/unix/unix_server_test_support.h"

namespace uma::server {
namespace {

std::string data_frame(std::string_view id, std::size_t bytes, bool is_last) {
  std::string text;
  append_base64(text, Bytes(bytes, std::byte{'x'}));
  return std::format(R"({{"id":"{}","type":"import_data","target":"i","data":"{}","last":{}}})", id, text, is_last);
}

TEST_F(UnixServerTest, AnExportedFileComesInParts) {
  start();
  TestClient client(path());
  client.send_json(R"({"id":"e","type":"export_session","session_id":"tale"})");
  Bytes file;
  auto frame = client.receive();
  for (; frame && frame->at("event") == "data"; frame = client.receive()) {
    EXPECT_EQ(frame->at("id").as_string(), "e");
    const auto part = decode_base64(std::string_view(frame->at("data").as_string()));
    ASSERT_TRUE(part);
    file.insert(file.end(), part->begin(), part->end());
  }
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->at("event").as_string(), "exported");
  EXPECT_EQ(frame->at("bytes").as_int64(), 1'000'000);
  EXPECT_EQ(frame->at("name").as_string(), "tale");
  EXPECT_EQ(file, Bytes(1'000'000, std::byte{'s'}));
}

TEST_F(UnixServerTest, AnImportedFileIsTakenInPartsAndAnsweredOnce) {
  start();
  TestClient client(path());
  client.send_json(R"({"id":"i","type":"import_session","name":"copy"})");
  client.send_json(R"({"id":"other","type":"import_session"})");
  EXPECT_EQ(client.receive_field("code"), "E_LIMIT_003") << "one at a time on a connection";
  client.send_json(data_frame("1", 500'000, false));
  EXPECT_EQ(client.receive_field("received_bytes"), "500000");
  client.send_json(data_frame("i", 1, false));
  EXPECT_EQ(client.receive_field("code"), "E_PROTO_005");
  client.send_json(data_frame("2", 7, true));
  EXPECT_EQ(client.receive_field("received_bytes"), "500007");
  const auto imported = client.receive();
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->at("id").as_string(), "i");
  EXPECT_EQ(imported->at("name").as_string(), "500007");
  EXPECT_FALSE(imported->at("tokens_kept").as_bool());
  client.send_json(data_frame("3", 1, true));
  EXPECT_EQ(client.receive_field("message"),
            "field \"target\" is not the id of an import_session in progress on this connection");
  client.send_json(R"({"id":"i","type":"import_session","name":"bad"})");
  client.send_json(data_frame("4", 0, true));
  EXPECT_EQ(client.receive_field("event"), "ack");
  EXPECT_EQ(client.receive_field("message"), "no session file");
}

TEST_F(UnixServerTest, AnExportIsDrawnAsItsClientReads) {
  start();
  TestClient client(path());
  client.send_json(R"({"id":"e","type":"export_session","session_id":"tale","kv":true})");
  EXPECT_EQ(client.receive_field("event"), "data");
  // What else the client asks for does not wait for the end of the file.
  client.send_json(R"({"id":"p","type":"ping"})");
  std::size_t received = 1;
  auto frame = client.receive();
  for (; frame && frame->at("event") == "data"; frame = client.receive()) ++received;
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->at("event").as_string(), "pong");
  EXPECT_LT(received, 600u) << "of about 1400";
  EXPECT_FALSE(service_.exported().expired());
  client.close();
  EXPECT_TRUE(server_->wait_idle(kPatience));
  EXPECT_TRUE(service_.exported().expired()) << "who leaves holds nothing";
}

TEST_F(UnixServerTest, AFileThatIsTooLongOrEndsTooEarlyEndsItsImport) {
  constexpr std::size_t kImportMax = 3'000'000;
  start({.limits = {.transfer_bytes_max = kImportMax}});
  TestClient client(path());
  client.send_json(R"({"id":"i","type":"import_session"})");
  const std::string part = data_frame("d", 700'000, false);
  for (std::size_t sent = 700'000; sent <= kImportMax; sent += 700'000) {
    client.send_json(part);
    ASSERT_EQ(client.receive_field("event"), "ack");
  }
  client.send_json(part);
  for (const char* id : {"i", "d"}) {
    const auto refused = client.receive();
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->at("id").as_string(), id);
    EXPECT_EQ(refused->at("code").as_string(), "E_LIMIT_001");
  }
  client.send_json(R"({"id":"i","type":"import_session"})");
  client.end_sending();
  EXPECT_EQ(client.receive_field("message"), "the session file is incomplete: its end did not arrive");
  EXPECT_TRUE(client.has_ended());
}

TEST_F(UnixServerTest, AFileWhoseClientStopsHoldsNoMemory) {
  constexpr std::size_t kMax = 3'000'000;
  start({.idle_timeout = milliseconds(300), .limits = {.transfer_bytes_max = kMax}});
  TestClient sends(path());
  sends.send_json(R"({"id":"i","type":"import_session"})");
  sends.send_json(data_frame("d", 700'000, false));
  TestClient reads(path());
  reads.send_json(R"({"id":"e","type":"export_session","session_id":"tale","kv":true})");
  EXPECT_EQ(reads.receive_field("event"), "data");
  EXPECT_FALSE(service_.exported().expired());
  EXPECT_EQ(sends.receive_field("event"), "ack");
  EXPECT_TRUE(sends.has_ended());
  EXPECT_TRUE(server_->wait_idle(kPatience)) << "nothing is under way for either";
  EXPECT_TRUE(service_.exported().expired());
}

}  // namespace
}  // namespace uma::server
