#include "wire/own/administration.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace uma::wire {
namespace {

std::string rejected_field(const std::string& body) {
  const auto key = decode_new_key(body);
  return key ? "taken" : key.error().field;
}

TEST(DecodeCard, TakesATextOfAnyForm) {
  EXPECT_EQ(decode_card(R"({"text":"path: x\n"})").value().text, "path: x\n");
  EXPECT_EQ(decode_card(R"({"text":""})").value().text, "");
  EXPECT_FALSE(decode_card(R"({"text":""})")->was);
  EXPECT_EQ(decode_card(R"({"text":"","was":"path: y\n"})")->was, "path: y\n");
  for (const std::string& body : {std::string("{}"), std::string(R"({"text":["x"]})"), std::string(R"({"text":null})"),
                                  R"({"text":")" + std::string(65'537, 'x') + R"("})"}) {
    const auto card = decode_card(body);
    ASSERT_FALSE(card.has_value());
    EXPECT_EQ(card.error().field, "text");
  }
  EXPECT_EQ(card_json("a\n"), R"({"text":"a\n"})");
}

TEST(DecodeNewKey, HasOptionsWithDefaults) {
  const KeyInfo plain = decode_new_key(R"({"name":"ci"})").value();
  EXPECT_EQ(plain.name, "ci");
  EXPECT_TRUE(plain.tenant.empty() && plain.requests_per_minute == 0 && !plain.deadline_ms && !plain.is_admin);
  const KeyInfo full = decode_new_key(R"({"name":"ci","tenant":"robots","requests_per_minute":60,"tokens_per_minute":7,)"
                                      R"("deadline_ms":0,"admin":true})")
                           .value();
  EXPECT_EQ(full.tenant, "robots");
  EXPECT_EQ(full.requests_per_minute, 60);
  EXPECT_EQ(full.tokens_per_minute, 7);
  EXPECT_EQ(full.deadline_ms, 0);
  EXPECT_TRUE(full.is_admin);
}

TEST(DecodeNewKey, RefusesWhatNoKeyHas) {
  EXPECT_EQ(rejected_field("{}"), "name");
  EXPECT_EQ(rejected_field(R"({"name":""})"), "name");
  EXPECT_EQ(rejected_field(R"({"name":"a","tenant":7})"), "tenant");
  EXPECT_EQ(rejected_field(R"({"name":"a","requests_per_minute":-1})"), "requests_per_minute");
  EXPECT_EQ(rejected_field(R"({"name":"a","tokens_per_minute":1000000001})"), "tokens_per_minute");
  EXPECT_EQ(rejected_field(R"({"name":"a","deadline_ms":0.5})"), "deadline_ms");
  EXPECT_EQ(rejected_field(R"({"name":"a","admin":"yes"})"), "admin");
}

TEST(KeysJson, HasNeitherKeysNorDigests) {
  const std::vector<KeyInfo> keys = {
      {.name = "ci", .tenant = "robots", .requests_per_minute = 60, .deadline_ms = 5, .is_admin = true},
      {.name = "me", .tenant = "key:me"}};
  EXPECT_EQ(keys_json(keys),
            R"({"object":"list","data":[{"name":"ci","tenant":"robots","requests_per_minute":60,"tokens_per_minute":0,)"
            R"("deadline_ms":5,"admin":true},{"name":"me","tenant":"key:me","requests_per_minute":0,"tokens_per_minute":0,)"
            R"("deadline_ms":null,"admin":false}]})");
  EXPECT_EQ(keys_json({}), R"({"object":"list","data":[]})");
  EXPECT_EQ(new_key_json("uma-1", "ci sha256:1"), R"({"key":"uma-1","line":"ci sha256:1"})");
}

TEST(SettingsJson, NamesThePlaceOfWhatIsNoDefault) {
  const std::vector<SettingValue> settings = {
      {.key = "slots", .value = "8", .source = "default"},
      {.key = "threads", .value = "4", .source = "environment", .place = "UMA_THREADS"}};
  EXPECT_EQ(settings_json(settings), R"({"object":"list","data":[{"key":"slots","value":"8","source":"default"},)"
                                     R"({"key":"threads","value":"4","source":"environment","place":"UMA_THREADS"}]})");
}

}  // namespace
}  // namespace uma::wire
