#include "llm/text_embedding.h"

#include <algorithm>
#include <cmath>
#include <format>
#include <limits>
#include <utility>

namespace uma::llm {
namespace {

void append(std::vector<Token>& tokens, std::span<const Token> more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
}

std::vector<Token> framed(std::span<const Token> before, std::span<const Token> text, std::span<const Token> after) {
  std::vector<Token> tokens;
  tokens.reserve(before.size() + text.size() + after.size());
  append(tokens, before);
  append(tokens, text);
  append(tokens, after);
  return tokens;
}

std::string names_of(const std::map<std::string, std::string>& tasks) {
  std::string names;
  for (const auto& [name, prefix] : tasks) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

// Scales to length 1; a zero vector stays unchanged.
void normalize(std::span<float> vector) {
  double squares = 0;
  for (const float value : vector) squares += static_cast<double>(value) * static_cast<double>(value);
  if (squares <= 0) return;
  const auto scale = static_cast<float>(1 / std::sqrt(squares));
  for (float& value : vector) value *= scale;
}

bool are_numbers(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

}  // namespace

void EmbedTexts::add(std::vector<Token> text, std::size_t input) {
  tokens += static_cast<std::int64_t>(text.size());
  texts.push_back({std::move(text), input});
}

TextEmbedder::TextEmbedder(std::shared_ptr<const Model> model, const EmbeddingShape& shape,
                           std::map<std::string, std::string> tasks, InputFormat format)
    : model_(std::move(model)), shape_(shape), tasks_(std::move(tasks)), format_(std::move(format)) {
  constexpr std::string_view kQuery = "{query}";
  constexpr std::string_view kDocument = "{document}";
  std::string_view rest = model_->facts().rerank_template;
  while (!rest.empty()) {
    const std::size_t query = rest.find(kQuery);
    const std::size_t document = rest.find(kDocument);
    const std::size_t at = std::min(query, document);
    template_.push_back({TemplatePart::Kind::words, std::string(rest.substr(0, at))});
    if (at == std::string_view::npos) break;
    const bool is_query = query < document;
    template_.push_back({is_query ? TemplatePart::Kind::query : TemplatePart::Kind::document, ""});
    rest.remove_prefix(at + (is_query ? kQuery.size() : kDocument.size()));
  }
}

Expected<Unit> TextEmbedder::check_capability(Capability wanted) const {
  const ModelFacts& facts = model_->facts();
  if (facts.capability == wanted) return Unit{};
  return fail(ErrorCode::model_capability, std::format("model \"{}\" has the capability {}, but the request needs {}",
                                                       facts.name, capability_name(facts.capability), capability_name(wanted)));
}

Error TextEmbedder::too_long(std::string_view what, std::size_t index, std::size_t tokens, std::string_view ways) const {
  return {ErrorCode::limit_prompt, std::format("{} {} has {} tokens, the limit of the model is {}: shorten it, or set {}", what,
                                               index, tokens, shape_.text_tokens_max, ways)};
}

// Tokenizes a separate text, without the frame.
Expected<std::vector<Token>> TextEmbedder::tokenize(std::string_view text) const {
  if (!model_->vocab().adds_space_prefix()) return model_->vocab().tokenize(text, false);
  return model_->vocab().tokenize(std::string(" ").append(text), false);
}

// --- Vectors

Expected<EmbedTexts> TextEmbedder::texts_of(const EmbedRequest& request) const {
  if (auto able = check_capability(Capability::text_embedding); !able) return std::unexpected(able.error());
  if (request.dimensions > shape_.dimensions) {
    return fail(ErrorCode::proto_field, std::format("field \"dimensions\" is {}, but the model's vectors have {}",
                                                    request.dimensions, shape_.dimensions));
  }
  if (!request.task.empty() && !tasks_.contains(request.task)) {
    return fail(ErrorCode::proto_field,
                std::format("field \"task\": the model has no task \"{}\"; it has: {}", request.task, names_of(tasks_)));
  }
  EmbedTexts texts;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    if (auto added = add_input(request, i, texts); !added) return std::unexpected(added.error());
  }
  return texts;
}

// An input of tokens is complete: the client adds the frame itself.
Expected<TextEmbedder::Framed> TextEmbedder::token_input(const EmbedRequest& request, std::size_t index) const {
  const auto& tokens = std::get<std::vector<Token>>(request.inputs[index]);
  const auto is_known = [size = model_->vocab().size()](Token token) { return token >= 0 && token < size; };
  if (const auto unknown = std::ranges::find_if_not(tokens, is_known); unknown != tokens.end()) {
    return fail(ErrorCode::proto_field, std::format("text {}: token {} is not in the vocabulary, which has 0 to {}", index,
                                                    *unknown, model_->vocab().size() - 1));
  }
  if (!request.task.empty()) {
    return fail(ErrorCode::proto_field,
                "field \"task\" works with texts only: put the tokens of its prefix before the input instead");
  }
  return Framed{.before = {}, .text = tokens, .after = {}};
}

Expected<TextEmbedder::Framed> TextEmbedder::text_input(const EmbedRequest& request, std::size_t index) const {
  const auto& text = std::get<std::string>(request.inputs[index]);
  const std::string& task = request.task.empty() ? request.task : tasks_.at(request.task);
  ChatMessage message{.role = "user", .content = text};
  if (!request.extras.empty()) message.extra = request.extras[index];
  if (format_.is_chat) return chat_input(request.task.empty() ? format_.instruction : task, message);
  const TextFrame& frame = model_->facts().text_frame;
  auto tokens = message.extra.empty() ? tokenize(task + text) : format_.write(task, message);
  if (!tokens) return std::unexpected(tokens.error());
  return Framed{.before = frame.before, .text = std::move(*tokens), .after = frame.after};
}

// The frame is what an input shares with an empty one, at its begin and at its end.
Expected<TextEmbedder::Framed> TextEmbedder::chat_input(const std::string& instruction, const ChatMessage& message) const {
  auto tokens = format_.write(instruction, message);
  if (!tokens) return std::unexpected(tokens.error());
  const std::vector<Token>& end = model_->facts().text_frame.after;
  Framed framed{.before = {}, .text = std::move(*tokens), .after = end};
  if (framed.text.size() + end.size() <= static_cast<std::size_t>(shape_.text_tokens_max)) return framed;
  const auto empty = format_.write(instruction, {.role = message.role, .content = ""});
  if (!empty) return std::unexpected(empty.error());
  const std::vector<Token>& text = framed.text;
  const auto begin = std::ranges::mismatch(text, *empty).in1;
  const auto begin_size = begin - text.begin();
  auto rest = text.end();
  auto rest_of_empty = empty->end();
  while (rest != begin && rest_of_empty - empty->begin() > begin_size && *(rest - 1) == *(rest_of_empty - 1)) {
    --rest;
    --rest_of_empty;
  }
  framed.before.assign(text.begin(), begin);
  framed.after.assign(rest, text.end());
  append(framed.after, end);
  framed.text = std::vector<Token>(begin, rest);
  return framed;
}

Expected<Unit> TextEmbedder::add_input(const EmbedRequest& request, std::size_t index, EmbedTexts& texts) const {
  const bool is_text = std::holds_alternative<std::string>(request.inputs[index]);
  const auto input = is_text ? text_input(request, index) : token_input(request, index);
  if (!input) return std::unexpected(input.error());
  const auto& [before, text, after] = *input;
  const std::size_t frame_size = before.size() + after.size();
  const std::size_t framed_size = frame_size + text.size();
  if (framed_size == 0) {
    return fail(ErrorCode::proto_field, std::format("text {} has no tokens for this model", index));
  }
  const auto longest = static_cast<std::size_t>(shape_.text_tokens_max);
  if (framed_size <= longest) {
    texts.add(framed(before, text, after), index);
    return Unit{};
  }
  if (!request.extras.empty() && !request.extras[index].empty()) {
    // A part of an image is none.
    return std::unexpected(too_long("input", index, framed_size, "n_ctx, or vision.image_tokens_max for smaller images"));
  }
  if (request.options.long_input == LongInput::refuse || frame_size >= longest) {
    return std::unexpected(too_long("text", index, framed_size, R"(long_input "truncate" or "chunk")"));
  }
  std::span<const Token> rest = text;
  do {
    const std::span<const Token> part = rest.first(std::min(rest.size(), longest - frame_size));
    texts.add(framed(before, part, after), index);
    rest = rest.subspan(part.size());
  } while (!rest.empty() && request.options.long_input == LongInput::chunk);
  return Unit{};
}

Expected<EmbedResult> TextEmbedder::result_of(const EmbedRequest& request, const EmbedTexts& texts,
                                              std::span<const float> outputs) const {
  const auto width = static_cast<std::size_t>(shape_.dimensions);
  const std::size_t kept = request.dimensions > 0 ? static_cast<std::size_t>(request.dimensions) : width;
  EmbedResult result;
  result.dimensions = static_cast<std::int32_t>(kept);
  result.tokens = texts.tokens;
  result.values.reserve(request.inputs.size() * kept);
  std::vector<float> part(width);
  std::vector<float> mean(width);
  for (std::size_t i = 0; i < texts.texts.size();) {
    // The mean of the parts of one input, weighted by their tokens; each part is computed as a separate text.
    std::ranges::fill(mean, 0.0f);
    const std::size_t first = i;
    for (; i < texts.texts.size() && texts.texts[i].input == texts.texts[first].input; ++i) {
      std::ranges::copy(outputs.subspan(i * width, width), part.begin());
      if (request.normalize) normalize(part);
      const auto weight = static_cast<float>(texts.texts[i].tokens.size());
      for (std::size_t at = 0; at < width; ++at) mean[at] += part[at] * weight;
    }
    std::size_t tokens = 0;
    for (std::size_t at = first; at < i; ++at) tokens += texts.texts[at].tokens.size();
    for (float& value : mean) value /= static_cast<float>(tokens);
    const std::span<float> vector = std::span(mean).first(kept);
    if (!are_numbers(vector)) {
      return fail(ErrorCode::runtime_decode,
                  std::format("the model computed values for text {} that are not finite", texts.texts[first].input));
    }
    if (request.normalize) normalize(vector);
    result.values.insert(result.values.end(), vector.begin(), vector.end());
  }
  return result;
}

// --- Scores

// Whether tokenizing with special tokens gives the same result.
Expected<bool> TextEmbedder::is_plain(std::string_view text, std::span<const Token> tokens) const {
  const bool has_space = model_->vocab().adds_space_prefix();
  const auto parsed = model_->vocab().tokenize(has_space ? std::string(" ").append(text) : std::string(text), true);
  if (!parsed) return std::unexpected(parsed.error());
  return std::ranges::equal(*parsed, tokens);
}

Expected<EmbedTexts> TextEmbedder::texts_of(const RerankRequest& request) const {
  if (auto able = check_capability(Capability::rerank); !able) return std::unexpected(able.error());
  auto query_tokens = tokenize(request.query);
  if (!query_tokens) return std::unexpected(query_tokens.error());
  Query query{.text = request.query, .tokens = std::move(*query_tokens)};
  const auto plain = is_plain(request.query, query.tokens);
  if (!plain) return std::unexpected(plain.error());
  query.is_plain = *plain;

  const auto longest = static_cast<std::size_t>(shape_.text_tokens_max);
  EmbedTexts texts;
  for (std::size_t i = 0; i < request.documents.size(); ++i) {
    auto pair = pair_of(query, request.documents[i]);
    if (!pair) return std::unexpected(pair.error());
    if (pair->size() > longest) {
      const auto without = in_parts(query, {});
      if (!without) return std::unexpected(without.error());
      if (request.options.long_input != LongInput::truncate || without->size() >= longest) {
        return std::unexpected(too_long("the query with document", i, pair->size(), R"(long_input "truncate")"));
      }
      const auto document = tokenize(request.documents[i]);
      if (!document) return std::unexpected(document.error());
      pair = in_parts(query, std::span(*document).first(std::min(document->size(), longest - without->size())));
      if (!pair) return std::unexpected(pair.error());
    }
    if (pair->empty()) return fail(ErrorCode::proto_field, std::format("document {} has no tokens for this model", i));
    texts.add(std::move(*pair), i);
  }
  return texts;
}

// A whole document.
Expected<std::vector<Token>> TextEmbedder::pair_of(const Query& query, std::string_view document) const {
  auto tokens = tokenize(document);
  if (!tokens) return tokens;
  if (template_.empty()) return in_parts(query, *tokens);
  return template_of(query, document, *tokens);
}

// Fills in the template as one text, because neighbouring words are tokenized together, unless a text would become special
// tokens.
Expected<std::vector<Token>> TextEmbedder::template_of(const Query& query, std::string_view document,
                                                       std::span<const Token> document_tokens) const {
  const auto plain = is_plain(document, document_tokens);
  if (!plain) return std::unexpected(plain.error());
  if (!query.is_plain || !*plain) return in_parts(query, document_tokens);
  std::string text;
  for (const TemplatePart& part : template_) {
    text += part.kind == TemplatePart::Kind::words   ? std::string_view(part.words)
            : part.kind == TemplatePart::Kind::query ? query.text
                                                     : document;
  }
  return model_->vocab().tokenize(text, true);
}

Expected<std::vector<Token>> TextEmbedder::in_parts(const Query& query, std::span<const Token> document) const {
  const TextFrame& frame = model_->facts().text_frame;
  std::vector<Token> tokens;
  if (template_.empty()) {
    append(tokens, frame.before);
    append(tokens, query.tokens);
    append(tokens, frame.between);
    append(tokens, document);
    append(tokens, frame.after_pair);
    return tokens;
  }
  for (const TemplatePart& part : template_) {
    if (part.kind == TemplatePart::Kind::words) {
      const auto words = model_->vocab().tokenize(part.words, true);
      if (!words) return std::unexpected(words.error());
      append(tokens, *words);
    } else {
      append(tokens, part.kind == TemplatePart::Kind::query ? std::span<const Token>(query.tokens) : document);
    }
  }
  return tokens;
}

Expected<RerankResult> TextEmbedder::result_of(const RerankRequest& request, const EmbedTexts& texts,
                                               std::span<const float> outputs) const {
  const auto width = static_cast<std::size_t>(shape_.dimensions);
  RerankResult result;
  result.tokens = texts.tokens;
  for (std::size_t i = 0; i < texts.texts.size(); ++i) result.scores.push_back({i, outputs[i * width]});
  for (const RerankScore& score : result.scores) {
    if (!std::isfinite(score.score)) {
      return fail(ErrorCode::runtime_decode,
                  std::format("the model computed a score for document {} that is not finite", score.index));
    }
  }
  std::ranges::stable_sort(result.scores, std::ranges::greater(), &RerankScore::score);
  const auto wanted = static_cast<std::size_t>(request.top_n);
  if (wanted > 0 && wanted < result.scores.size()) result.scores.resize(wanted);
  return result;
}

}  // namespace uma::llm
