#include "pool/card_edit.h"

#include <algorithm>
#include <filesystem>
#include <format>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "core/file/edit_file.h"
#include "core/model_library.h"
#include "pool/card_file.h"
#include "pool/card_text.h"

namespace uma::pool {
namespace {

// The first mistakes, as one line.
std::string joined(const std::vector<std::string>& problems) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(problems.size(), kShown); ++i)
    text += std::format("{}{}", i == 0 ? "" : "; ", problems[i]);
  if (problems.size() > kShown) text += std::format("; and {} more", problems.size() - kShown);
  return text;
}

Expected<const RegisteredModel*> find_by_name(const ModelRegistry& registry, const std::string& model) {
  const auto found = registry.find(model);
  if (!found || (*found)->card.name == model) return found;
  return fail(ErrorCode::model_unknown,
              std::format("{} is another name of {}: ask for the card of {}", model, (*found)->card.name, (*found)->card.name));
}

Expected<Unit> check_has_file(const ModelRegistry& registry) {
  if (!registry.cards_file().empty()) return Unit{};
  return fail(ErrorCode::io_failed, "there is no models.yaml, because neither XDG_CONFIG_HOME nor HOME is set for umad");
}

// The message with the path of the file.
Error in_file(const ModelRegistry& registry, Error error) {
  if (error.code == ErrorCode::io_failed) error.message = std::format("{}: {}", registry.cards_file(), error.message);
  return error;
}

// Examines the text of the whole file, as the start would.
Expected<Unit> check_file(const ModelRegistry& registry, const ModelCard& card, const std::string& text) {
  const auto next = registry.with_cards(text);
  if (!next) return fail(ErrorCode::proto_field, joined(next.error()));
  const auto found = (*next)->find(card.name);
  if (found && (*found)->card.name == card.name && (*found)->card.path == card.path && (*found)->card.url == card.url)
    return Unit{};
  return fail(ErrorCode::proto_field,
              std::format("the name {} belongs to {}, so that a card for another file has no effect: keep its path", card.name,
                          found ? (*found)->path : "another model"));
}

// The model's card in the text of models.yaml, or the one that it could have.
Expected<std::string> card_of(const ModelRegistry& registry, const RegisteredModel& model, const std::string& text) {
  auto card = card_in(text, model.card.name);
  if (!card) return std::unexpected(in_file(registry, card.error()));
  if (*card) return **std::move(card);
  std::error_code problem;
  YAML::Node made;
  made["path"] = std::filesystem::absolute(model.path, problem).string();
  return YAML::Dump(made) + '\n';
}

}  // namespace

Expected<std::string> read_card(const ModelRegistry& registry, const std::string& model) {
  const auto known = find_by_name(registry, model);
  if (!known) return std::unexpected(known.error());
  std::string text;
  if (!registry.cards_file().empty()) {
    auto read = read_text_file(registry.cards_file(), {});
    if (!read) return std::unexpected(read.error());
    text = *std::move(read);
  }
  return card_of(registry, **known, text);
}

Expected<std::string> store_card(const ModelRegistry& registry, const std::string& model, const std::string& card,
                                 const std::optional<std::string>& was) {
  const auto known = find_by_name(registry, model);
  if (!known) return std::unexpected(known.error());
  if (const auto has_file = check_has_file(registry); !has_file) return std::unexpected(has_file.error());
  if (card.size() > kCardBytesMax) {
    return fail(ErrorCode::proto_field, std::format("the card has {} bytes, and the limit is {}", card.size(), kCardBytesMax));
  }
  const auto parsed = parse_card(model, card);
  if (!parsed) return fail(ErrorCode::proto_field, joined(parsed.error()));
  std::string stored;
  const auto edited = edit_file(registry.cards_file(), {}, [&](const std::string& old) -> Expected<std::string> {
    if (was) {
      const auto current = card_of(registry, **known, old);
      if (!current) return std::unexpected(current.error());
      if (*current != *was) {
        return fail(
            ErrorCode::session_busy,
            std::format("the card of {} is not the one that you have changed, because it was stored again meanwhile: read "
                        "it, and change that",
                        model));
      }
    }
    auto next = with_card(old, model, card);
    if (!next) return std::unexpected(in_file(registry, next.error()));
    if (const auto checked = check_file(registry, *parsed, *next); !checked) return std::unexpected(checked.error());
    const auto shown = card_in(*next, model);
    if (!shown) return std::unexpected(in_file(registry, shown.error()));
    stored = shown->value_or("");
    return next;
  });
  if (!edited) return std::unexpected(edited.error());
  return stored;
}

}  // namespace uma::pool
