#include "wire/own/administration.h"

#include "core/model_library.h"
#include "json/json_writer.h"

namespace uma::wire {
namespace {

constexpr std::int64_t kKeyCountMax = 1'000'000'000;

template <class ItemsT, class WriteT>
std::string list_json(const ItemsT& items, WriteT write) {
  std::string out;
  json::ObjectWriter list(out);
  list.field("object", "list");
  json::append_array(list.begin("data"), items, [&](const auto& item) {
    json::ObjectWriter object(out);
    write(object, item);
    object.close();
  });
  list.close();
  return out;
}

}  // namespace

std::expected<CardChange, RejectedBody> decode_card(std::string_view body) {
  return decode_body<CardChange>(body, [](json::FieldReader& fields) {
    CardChange change{.text = fields.required_text("text", {0, kCardBytesMax})};
    change.was = fields.text("was", {0, kCardBytesMax});
    return change;
  });
}

std::string card_json(std::string_view text) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("text", text);
  object.close();
  return out;
}

std::expected<KeyInfo, RejectedBody> decode_new_key(std::string_view body) {
  return decode_body<KeyInfo>(body, [](json::FieldReader& fields) {
    KeyInfo key{.name = fields.required_text("name", {1, 64})};
    key.tenant = fields.text("tenant", {1, 128}).value_or("");
    key.requests_per_minute = fields.integer("requests_per_minute", 0, kKeyCountMax).value_or(0);
    key.tokens_per_minute = fields.integer("tokens_per_minute", 0, kKeyCountMax).value_or(0);
    key.deadline_ms = fields.integer("deadline_ms", 0, kKeyCountMax);
    key.is_admin = fields.boolean("admin").value_or(false);
    return key;
  });
}

std::string keys_json(std::span<const KeyInfo> keys) {
  return list_json(keys, [](json::ObjectWriter& object, const KeyInfo& key) {
    object.field("name", key.name);
    object.field("tenant", key.tenant);
    object.field("requests_per_minute", key.requests_per_minute);
    object.field("tokens_per_minute", key.tokens_per_minute);
    if (key.deadline_ms) {
      object.field("deadline_ms", *key.deadline_ms);
    } else {
      object.null_field("deadline_ms");
    }
    object.field("admin", key.is_admin);
  });
}

std::string new_key_json(std::string_view key, std::string_view line) {
  std::string out;
  json::ObjectWriter object(out);
  object.field("key", key);
  object.field("line", line);
  object.close();
  return out;
}

std::string settings_json(std::span<const SettingValue> settings) {
  return list_json(settings, [](json::ObjectWriter& object, const SettingValue& setting) {
    object.field("key", setting.key);
    object.field("value", setting.value);
    object.field("source", setting.source);
    if (!setting.place.empty()) object.field("place", setting.place);
  });
}

}  // namespace uma::wire
