#include "make_model/replies.h"

#include <algorithm>
#include <cstdint>
#include <format>
#include <unordered_map>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <llama.h>

#include "json/field_reader.h"
#include "make_model/gguf_writer.h"
#include "make_model/hand_metadata.h"
#include "make_model/input_file.h"
#include "make_model/played_weights.h"
#include "make_model/vocabulary.h"

namespace uma {

namespace {

constexpr json::TextBytes kReplyTextBytes{.min = 1, .max = 256};

// Calls `read` with a reader of each object of the list, which must be there.
void read_each(json::FieldReader& fields, std::string_view name, auto&& read) {
  const boost::json::array* list = fields.array(name);
  if (list == nullptr) return fields.fail_field(name, "is missing");
  for (std::size_t i = 0; i < list->size(); ++i) {
    if (!(*list)[i].is_object()) return fields.fail_field(name, "must have objects only");
    json::FieldReader each((*list)[i].get_object(), std::format("{}[{}].", name, i));
    read(each);
    if (!each.ok()) return fields.fail_as(each);
  }
}

Replies::Reply read_reply(json::FieldReader& fields) {
  Replies::Reply reply{.after = static_cast<std::size_t>(fields.integer("after", 0, kPlayedDistanceMax).value_or(0)),
                       .tokens = {}};
  const boost::json::array* tokens = fields.array("tokens");
  if (tokens == nullptr) {
    fields.fail_field("tokens", "is missing");
    return reply;
  }
  for (const boost::json::value& token : *tokens) {
    reply.tokens.push_back(token.is_null() ? std::nullopt : fields.checked_text("tokens", token, kReplyTextBytes));
  }
  return reply;
}

// The tokens of a model that plays replies, by text.
class PlayedVocabulary {
 public:
  explicit PlayedVocabulary(const Replies& replies) {
    add("<unk>", LLAMA_TOKEN_TYPE_UNKNOWN);
    add("<s>", LLAMA_TOKEN_TYPE_CONTROL);
    add("</s>", LLAMA_TOKEN_TYPE_CONTROL);
    for (int byte = 0; byte < 256; ++byte) add(std::format("<0x{:02X}>", byte), LLAMA_TOKEN_TYPE_BYTE);
    vocabulary_.plain_begin = vocabulary_.size();
    for (const std::string_view text : {"\u2581", "\t", "\n"}) add(std::string(text), LLAMA_TOKEN_TYPE_NORMAL);
    for (char character = '!'; character <= '~'; ++character) add(std::string(1, character), LLAMA_TOKEN_TYPE_NORMAL);
    for (const Replies::Token& token : replies.tokens)
      add(token.text, token.is_control ? LLAMA_TOKEN_TYPE_CONTROL : LLAMA_TOKEN_TYPE_USER_DEFINED);
  }

  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

  // The error says that there is none.
  [[nodiscard]] std::expected<std::int64_t, std::string> id_of(const std::string& text) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) return std::unexpected(std::format("there is no token \"{}\": add it to \"tokens\"", text));
    return found->second;
  }

 private:
  void add(std::string text, llama_token_type type) {
    if (!ids_.emplace(text, std::ssize(vocabulary_.texts)).second) return;
    vocabulary_.texts.push_back(std::move(text));
    vocabulary_.scores.push_back(0);
    vocabulary_.types.push_back(type);
  }

  Vocabulary vocabulary_;
  std::unordered_map<std::string, std::int64_t> ids_;
};

std::expected<PlayedTokens, std::string> place_replies(const Replies& replies, const PlayedVocabulary& vocabulary) {
  PlayedTokens placed{.tokens_count = std::ssize(vocabulary.vocabulary().texts), .begin = kTokenBos};
  if (placed.tokens_count > kHandTokensMax)
    return std::unexpected(std::format("there are {} tokens, at most {} are possible", placed.tokens_count, kHandTokensMax));
  if (std::ssize(replies.replies) > kPlayedKindsMax)
    return std::unexpected(
        std::format("there are {} replies, at most {} are possible", replies.replies.size(), kPlayedKindsMax));
  const auto end = vocabulary.id_of(replies.end);
  if (!end) return std::unexpected(end.error());
  placed.end = *end;
  for (const Replies::Cue& cue : replies.cues) {
    const auto token = vocabulary.id_of(cue.text);
    const auto echo = vocabulary.id_of(cue.echo);
    if (!token || !echo) return std::unexpected((token ? echo : token).error());
    if (cue.reply >= replies.replies.size()) return std::unexpected(std::format("there is no reply {}", cue.reply));
    placed.cues.push_back({.token = *token, .echo = *echo, .kind = static_cast<std::int64_t>(cue.reply)});
  }
  for (const Replies::Reply& reply : replies.replies) {
    if (reply.after + reply.tokens.size() > kPlayedDistanceMax) {
      return std::unexpected(std::format("a reply ends {} tokens behind its cue, at most {} are possible: make it shorter",
                                         reply.after + reply.tokens.size(), kPlayedDistanceMax));
    }
    PlayedTokens::Reply& made = placed.replies.emplace_back();
    made.after = static_cast<std::int64_t>(reply.after);
    for (const std::optional<std::string>& text : reply.tokens) {
      const auto token = text ? vocabulary.id_of(*text) : std::expected<std::int64_t, std::string>(0);
      if (!token) return std::unexpected(token.error());
      made.tokens.push_back(text ? std::optional(*token) : std::nullopt);
    }
  }
  return placed;
}

}  // namespace

std::expected<Replies, std::string> parse_replies(std::string_view text) {
  boost::system::error_code problem;
  const boost::json::value value = json::parse(text, {}, problem);
  if (problem || !value.is_object()) return std::unexpected("the replies are not a JSON object");
  json::FieldReader fields(value.get_object());
  Replies replies;
  read_each(fields, "tokens", [&](json::FieldReader& token) {
    replies.tokens.push_back(
        {.text = token.required_text("text", kReplyTextBytes), .is_control = token.boolean("is_control").value_or(false)});
  });
  read_each(fields, "cues", [&](json::FieldReader& cue) {
    replies.cues.push_back({.text = cue.required_text("text", kReplyTextBytes),
                            .echo = cue.required_text("echo", kReplyTextBytes),
                            .reply = static_cast<std::size_t>(cue.integer("reply", 0, kPlayedKindsMax - 1).value_or(0))});
  });
  read_each(fields, "replies", [&](json::FieldReader& reply) { replies.replies.push_back(read_reply(reply)); });
  replies.end = fields.text("end", kReplyTextBytes).value_or(replies.end);
  if (!fields.ok()) return std::unexpected("the replies' " + fields.take_error().message);
  return replies;
}

std::expected<Replies, std::string> read_replies(const std::filesystem::path& path) {
  return parse_file(path, parse_replies);
}

std::expected<void, std::string> write_played_model(const Replies& replies, const std::string& chat_template,
                                                    const std::filesystem::path& path) {
  const PlayedVocabulary vocabulary(replies);
  const auto placed = place_replies(replies, vocabulary);
  if (!placed) return std::unexpected(placed.error());
  GgufPtr gguf(gguf_init_empty());
  set_hand_metadata(gguf.get(),
                    {.name = "uma played",
                     .layers = kPlayedLayers,
                     .feed_forward = static_cast<std::uint32_t>(played_feed_forward(*placed)),
                     .chat_template = chat_template},
                    vocabulary.vocabulary());
  return write_gguf(std::move(gguf), list_played_matrices(*placed), GGML_TYPE_F16, /*seed=*/1, path);
}

}  // namespace uma
