#include "testing/fake_model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "llm/media/image_tokens.h"
#include "testing/fake_embedding.h"

namespace uma::testing {
namespace {

constexpr std::uint64_t kNothingSeen = 0x243f6a8885a308d3ull;
constexpr std::size_t kNotShifted = std::numeric_limits<std::size_t>::max();

// The digest after one more token.
std::uint64_t digest_with(std::uint64_t digest, Token token) {
  return Random(digest ^ static_cast<std::uint64_t>(token + 1)).next_u64();
}

// The number of a set of adapters, which is part of every cell; 0 for none.
std::uint32_t salt_of(const llm::AdapterSet& adapters) {
  if (adapters.is_empty()) return 0;
  const std::uint64_t hash = std::ranges::fold_left(adapters.identity, kNothingSeen, digest_with);
  return 1 + static_cast<std::uint32_t>(hash % 255);
}

// The digest before the first token.
std::uint64_t first_digest(std::uint32_t salt) {
  return kNothingSeen + salt;
}

// The part of a digest that a cell keeps.
std::uint32_t seen_of(std::uint64_t digest, std::uint32_t salt) {
  return (static_cast<std::uint32_t>(digest) & ~0xffU) | salt;
}

std::uint64_t digest_of(std::span<const Token> tokens, const llm::AdapterSet& adapters) {
  return std::ranges::fold_left(tokens, first_digest(salt_of(adapters)), digest_with);
}

// Letters and spaces are likely, so that replies look like text; the other bytes are possible. `hash` is the digest of the
// tokens.
std::vector<float> fake_logits(std::uint64_t hash, std::span<const Token> tokens, const FakeOptions& options) {
  const bool differs = options.differs_every != 0 && hash / 7 % options.differs_every == 0;
  Random random(differs ? ~hash : hash);
  std::vector<float> logits(static_cast<std::size_t>(kFakeVocabularySize), -20.0f);
  for (std::size_t token = 0; token < 256; ++token) {
    const bool is_plain = (token >= 'a' && token <= 'z') || token == ' ';
    logits[token] = static_cast<float>(random.next_unit()) * (is_plain ? 10.0f : 5.0f);
  }
  if (!options.says.empty()) {
    constexpr std::size_t kHeadTokens = std::string_view("assistant\n").size();
    const auto turn = std::ranges::find_last(tokens, kFakeImStart);
    const std::size_t length = turn.size() > kHeadTokens ? turn.size() - 1 - kHeadTokens : 0;
    const Token next = length < options.says.size() ? static_cast<unsigned char>(options.says[length]) : kFakeImEnd;
    logits[static_cast<std::size_t>(next)] = 40.0f;
  }
  if (options.end_every != 0 && hash % options.end_every == 0) logits[kFakeImEnd] = 30.0f;
  return logits;
}

}  // namespace

float fake_row_value(Token token) {
  constexpr Token kExactMax = 1 << 24;  // Integers up to here are exact.
  return static_cast<float>(token % kExactMax);
}

FakeContext::FakeContext(const FakeOptions& options)
    : options_(options),
      held_(static_cast<std::size_t>(options_.sequences + (options_.has_spare ? 1 : 0))),
      shifted_from_(held_.size(), kNotShifted) {
  shape_.cells = options_.cells;
  shape_.sequences = options_.sequences;
  shape_.spare = options_.has_spare ? options_.sequences : -1;
  shape_.sequence_cells_max = options_.unified ? options_.cells : options_.cells / options_.sequences;
  shape_.batch_rows_max = options_.batch_rows_max;
  shape_.ubatch_rows_max = options_.batch_rows_max;
  shape_.image_rows_max = options_.batch_rows_max;
  shape_.logits_rows_max = std::min(options_.batch_rows_max, options_.sequences + 8);
  shape_.is_unified = options_.unified;
  shape_.can_truncate = options_.can_truncate;
  shape_.can_shift = options_.can_truncate && options_.can_shift && !options_.has_grids;
  shape_.has_grids = options_.has_grids;
  shape_.kv_bytes_per_token = kCellBytes;
  shape_.memory_bytes = static_cast<std::uint64_t>(shape_.cells) * kCellBytes;
  const auto stream_cells = static_cast<std::uint32_t>(shape_.sequence_cells_max);
  free_.resize(options_.unified ? 1 : held_.size());
  for (std::vector<std::uint32_t>& free : free_) {
    for (std::uint32_t i = stream_cells; i > 0; --i) free.push_back(static_cast<std::uint32_t>(cells_.size()) + i - 1);
    cells_.resize(cells_.size() + stream_cells);
  }
}

// Equals digest_of(tokens) if every cell was computed from the cells before it, with the adapters of `salt`.
std::uint64_t FakeContext::digest_of(const Held& held, std::uint32_t salt) const {
  std::uint64_t digest = first_digest(salt);
  for (const std::uint32_t index : held) {
    const Cell& cell = cells_[index];
    digest = digest_with(digest, cell.token);
    if (cell.seen != seen_of(digest, salt)) digest ^= cell.seen;
  }
  return digest;
}

std::vector<Token> FakeContext::tokens_of(const Held& held) const {
  std::vector<Token> tokens;
  tokens.reserve(held.size());
  for (const std::uint32_t index : held) tokens.push_back(cells_[index].token);
  return tokens;
}

std::vector<Token> FakeContext::cached(std::int32_t sequence, std::size_t count) const {
  const Held& held = held_[static_cast<std::size_t>(sequence)];
  return tokens_of(Held(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(std::min(count, held.size()))));
}

bool FakeContext::is_spoiled(std::size_t stream) const {
  if (!is_spoiled_) return false;
  const std::size_t count = cells_.size() / free_.size();
  return std::ranges::contains(std::span(cells_).subspan(stream * count, count), kNotFinite, &Cell::seen);
}

void FakeContext::clear() {
  for (std::size_t i = 0; i < held_.size(); ++i) keep(i, 0);
  for (Cell& cell : cells_) cell = {};
  is_spoiled_ = false;
}

// Requires: a free cell.
void FakeContext::append(std::size_t sequence, Token token, std::uint32_t seen) {
  if (seen == kNotFinite) is_spoiled_ = true;
  std::vector<std::uint32_t>& free = free_[stream_of(sequence)];
  cells_[free.back()] = {.token = token, .seen = seen, .is_moved = false, .holders = 1};
  held_[sequence].push_back(free.back());
  free.pop_back();
}

void FakeContext::keep(std::size_t sequence, std::size_t count) {
  Held& held = held_[sequence];
  if (count <= shifted_from_[sequence]) shifted_from_[sequence] = kNotShifted;
  while (held.size() > count) {
    if (--cells_[held.back()].holders == 0) set_free(stream_of(sequence), held.back());
    held.pop_back();
  }
}

// As in the library, new tokens get the lowest free cells.
void FakeContext::set_free(std::size_t stream, std::uint32_t cell) {
  std::vector<std::uint32_t>& free = free_[stream];
  free.insert(std::ranges::lower_bound(free, cell, std::greater()), cell);
}

std::size_t FakeContext::top() const {
  const auto last = std::ranges::find_if(cells_ | std::views::reverse, [](const Cell& cell) { return cell.holders > 0; });
  return static_cast<std::size_t>(last.base() - cells_.begin());
}

std::int64_t FakeContext::skipped_by(std::span<const llm::BatchRow> rows) const {
  if (!options_.unified || options_.skip_cost == Duration(0)) return 0;
  const auto end = static_cast<std::int64_t>(top());
  std::int64_t skipped = 0;
  for (const llm::BatchRow& row : rows) skipped += std::max<std::int64_t>(0, end - row.position);
  return skipped;
}

Expected<llm::DecodeStatus> FakeContext::decode(std::span<const llm::BatchRow> rows, llm::CallMonitor* monitor) {
  UMA_CHECK(!rows.empty() && rows.size() <= static_cast<std::size_t>(shape_.batch_rows_max));
  logits_.clear();
  if (options_.clock != nullptr) {
    if (rows.size() % 4 != 0) options_.clock->advance(options_.uneven_cost);
    options_.clock->advance(options_.decode_cost + options_.row_cost * static_cast<std::int64_t>(rows.size()) +
                            options_.skip_cost * skipped_by(rows));
  }
  FakeFault fault_now = fault ? fault(rows) : FakeFault::none;
  if (monitor != nullptr && monitor->wants_end()) fault_now = FakeFault::interrupted_half;
  if (fault_now == FakeFault::lost) options_.lost->store(true);
  if (is_lost()) return fail(ErrorCode::runtime_decode, "the device is lost");
  const auto shifted_from = std::exchange(shifted_from_, std::vector<std::size_t>(held_.size(), kNotShifted));
  if (fault_now == FakeFault::decode_error) {
    for (std::size_t i = 0; i < held_.size(); ++i) keep(i, shifted_from[i]);
    return fail(ErrorCode::runtime_decode, "a fault of the simulation");
  }
  if (fault_now == FakeFault::throws) throw std::bad_alloc();
  if (fault_now == FakeFault::out_of_cells) return llm::DecodeStatus::out_of_cells;
  std::vector<std::size_t> wanted(free_.size());
  for (const llm::BatchRow& row : rows) ++wanted[stream_of(static_cast<std::size_t>(row.sequence))];
  for (std::size_t stream = 0; stream < free_.size(); ++stream) {
    if (wanted[stream] > free_[stream].size()) return llm::DecodeStatus::out_of_cells;
  }
  const std::size_t computed = fault_now == FakeFault::interrupted_half ? rows.size() / 2 : rows.size();
  const std::uint32_t salt = salt_of(adapters_);
  std::map<std::int32_t, std::uint64_t> digests;  // Per sequence.
  for (std::size_t i = 0; i < computed; ++i) {
    const llm::BatchRow& row = rows[i];
    const auto sequence = static_cast<std::size_t>(row.sequence);
    UMA_CHECK(row.position == static_cast<std::int32_t>(held_[sequence].size()));
    const auto [known, is_first] = digests.try_emplace(row.sequence);
    std::uint64_t& digest = known->second;
    digest = digest_with(is_first ? digest_of(held_[sequence], salt) : digest, row.token);
    const bool is_finite = fault_now != FakeFault::not_finite && !is_spoiled(stream_of(sequence));
    append(sequence, row.token, is_finite ? seen_of(digest, salt) : kNotFinite);
    if (!row.wants_logits) continue;
    std::vector<float>& logits = logits_[static_cast<std::int32_t>(i)];
    logits = fake_logits(digest, tokens_of(held_[sequence]), options_);
    if (!is_finite) std::ranges::fill(logits, std::numeric_limits<float>::quiet_NaN());
  }
  if (fault_now != FakeFault::interrupted_half) return llm::DecodeStatus::done;
  if (!options_.can_truncate) {
    for (const llm::BatchRow& row : rows) (void)truncate(row.sequence, 0);
  }
  return llm::DecodeStatus::interrupted;
}

Expected<llm::DecodeStatus> FakeContext::decode_image(const llm::ImageRows& rows, llm::CallMonitor* monitor) {
  UMA_CHECK(!rows.tokens.empty() && rows.tokens.size() <= static_cast<std::size_t>(shape_.image_rows_max));
  const std::size_t width = rows.values.size() / rows.tokens.size();
  std::vector<llm::BatchRow> batch;
  for (std::size_t i = 0; i < rows.tokens.size(); ++i) {
    UMA_CHECK(!options_.checks_image_rows || rows.values[i * width] == fake_row_value(rows.tokens[i]));
    batch.push_back({.token = rows.tokens[i],
                     .position = rows.position + static_cast<std::int32_t>(i),
                     .sequence = rows.sequence,
                     .wants_logits = rows.wants_logits && i + 1 == rows.tokens.size()});
  }
  if (!options_.has_grids) return decode(batch, monitor);
  UMA_CHECK(rows.grid.places.size() == rows.tokens.size() && rows.grid.advance == 1);
  for (std::size_t i = 0; i < rows.tokens.size(); ++i) UMA_CHECK(rows.grid.places[i][2] == static_cast<std::int32_t>(i));
  auto status = decode(batch, monitor);
  if ((!status || *status != llm::DecodeStatus::done) && sequence_length(rows.sequence) > rows.position) {
    keep(static_cast<std::size_t>(rows.sequence), static_cast<std::size_t>(rows.position));
  }
  return status;
}

bool FakeContext::divides_image(std::int32_t sequence, std::int32_t position) const {
  const Held& held = held_[static_cast<std::size_t>(sequence)];
  const auto at = static_cast<std::size_t>(position);
  return options_.has_grids && at > 0 && at < held.size() && llm::is_image_token(cells_[held[at - 1]].token) &&
         llm::is_image_token(cells_[held[at]].token);
}

std::span<float> FakeContext::logits(std::int32_t row) {
  const auto found = logits_.find(row);
  return found == logits_.end() ? std::span<float>() : std::span<float>(found->second);
}

std::int32_t FakeContext::sequence_length(std::int32_t sequence) {
  return static_cast<std::int32_t>(held_[static_cast<std::size_t>(sequence)].size());
}

bool FakeContext::can_truncate(std::int32_t sequence, std::int32_t begin) {
  return (options_.can_truncate && !divides_image(sequence, begin)) || begin == 0 || begin >= sequence_length(sequence);
}

bool FakeContext::truncate(std::int32_t sequence, std::int32_t begin) {
  if (!can_truncate(sequence, begin)) return false;
  keep(static_cast<std::size_t>(sequence), static_cast<std::size_t>(begin));
  return true;
}

// The library rotates the keys with the next decode, and the values depend on removed tokens: moved cells must not be shared,
// and are useless in a saved state.
void FakeContext::shift(std::int32_t sequence, std::int32_t begin, std::int32_t end) {
  const auto index = static_cast<std::size_t>(sequence);
  Held& held = held_[index];
  UMA_CHECK(shape_.can_shift && 0 <= begin && begin < end && static_cast<std::size_t>(end) < held.size());
  const std::uint32_t salt = cells_[held.front()].seen & 0xffU;  // Moving cells has nothing to do with the adapters in use.
  const Held behind(held.begin() + end, held.end());
  for (const std::uint32_t cell : behind) UMA_CHECK(cells_[cell].holders == 1);
  held.resize(static_cast<std::size_t>(end));
  keep(index, static_cast<std::size_t>(begin));
  // The cells become equal to cells that were computed again.
  std::uint64_t digest = digest_of(held, salt);
  for (const std::uint32_t cell : behind) {
    digest = digest_with(digest, cells_[cell].token);
    cells_[cell].seen = seen_of(digest, salt);
    cells_[cell].is_moved = true;
    held.push_back(cell);
  }
  shifted_from_[index] = std::min(shifted_from_[index], static_cast<std::size_t>(begin));
  ++shifts_;
}

std::int64_t FakeContext::moved_cells(std::int32_t sequence) const {
  return std::ranges::count_if(held_[static_cast<std::size_t>(sequence)],
                               [&](std::uint32_t cell) { return cells_[cell].is_moved; });
}

void FakeContext::share(std::int32_t from, std::int32_t to, std::int32_t count) {
  const Held& source = held_[static_cast<std::size_t>(from)];
  Held& target = held_[static_cast<std::size_t>(to)];
  UMA_CHECK(options_.unified && target.empty() && count <= std::ssize(source) && can_truncate(from, count));
  target.assign(source.begin(), source.begin() + count);
  for (const std::uint32_t cell : target) {
    UMA_CHECK(!cells_[cell].is_moved);
    ++cells_[cell].holders;
  }
}

Expected<Unit> FakeContext::save_state(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) {
  if (on_state) on_state();
  if (fail_state || is_lost()) return fail(ErrorCode::runtime_decode, "a fault of the simulation");
  const Held& held = held_[static_cast<std::size_t>(sequence)];
  UMA_CHECK(0 <= begin && begin < end && end <= static_cast<std::int32_t>(held.size()));
  UMA_CHECK((begin == 0 && end == static_cast<std::int32_t>(held.size())) || (options_.unified && options_.can_truncate));
  UMA_CHECK(!divides_image(sequence, begin) && !divides_image(sequence, end));
  bytes.clear();
  cells_saved += end - begin;
  if (options_.clock != nullptr) options_.clock->advance(options_.state_cost * (end - begin));
  for (std::int32_t i = begin; i < end; ++i) {
    const Cell& cell = cells_[held[static_cast<std::size_t>(i)]];
    const auto token = std::as_bytes(std::span(&cell.token, 1));
    // Changed, so that another user of the state gets another text.
    const std::uint32_t digest = cell.is_moved ? ~cell.seen : cell.seen;
    const auto seen = std::as_bytes(std::span(&digest, 1));
    bytes.insert(bytes.end(), token.begin(), token.end());
    bytes.insert(bytes.end(), seen.begin(), seen.end());
  }
  return Unit{};
}

Expected<Unit> FakeContext::load_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                       std::span<const std::byte> bytes) {
  if (on_state) on_state();
  const auto index = static_cast<std::size_t>(sequence);
  const auto count = static_cast<std::size_t>(end - begin);
  UMA_CHECK(begin == static_cast<std::int32_t>(held_[index].size()));
  if (fail_state || is_lost() || bytes.size() != count * kCellBytes || count > free_[stream_of(index)].size()) {
    keep(index, 0);
    return fail(ErrorCode::runtime_decode, "a fault of the simulation");
  }
  if (options_.clock != nullptr) options_.clock->advance(options_.state_cost * (end - begin));
  cells_loaded += end - begin;
  for (std::size_t at = 0; at < bytes.size(); at += kCellBytes) {
    Token token = 0;
    std::uint32_t seen = 0;
    std::memcpy(&token, bytes.data() + at, sizeof token);
    std::memcpy(&seen, bytes.data() + at + sizeof token, sizeof seen);
    append(index, token, seen);
  }
  return Unit{};
}

Expected<Unit> FakeContext::move_cells(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes&) {
  if (on_state) on_state();
  UMA_CHECK(shape_.can_move_cells());
  Held& held = held_[static_cast<std::size_t>(sequence)];
  UMA_CHECK(0 <= begin && begin < end && end <= static_cast<std::int32_t>(held.size()));
  if (fail_state) {
    keep(static_cast<std::size_t>(sequence), static_cast<std::size_t>(begin));
    return fail(ErrorCode::runtime_decode, "a fault of the simulation");
  }
  if (options_.clock != nullptr) options_.clock->advance(2 * options_.state_cost * (end - begin));
  cells_moved += end - begin;
  const auto moving = std::span(held).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  std::vector<Cell> values;
  for (const std::uint32_t cell : moving) {
    UMA_CHECK(cells_[cell].holders == 1 && !cells_[cell].is_moved);
    values.push_back(cells_[cell]);
    cells_[cell].holders = 0;
    set_free(0, cell);
  }
  for (std::size_t i = 0; i < moving.size(); ++i) {
    moving[i] = free_[0].back();
    free_[0].pop_back();
    cells_[moving[i]] = values[i];
  }
  return Unit{};
}

FakeVocab::FakeVocab(bool adds_space_prefix) : adds_space_prefix_(adds_space_prefix), bytes_(256, '\0') {
  for (std::size_t i = 0; i < 256; ++i) bytes_[i] = static_cast<char>(i);
  ordered_pieces_ = llm::order_pieces(*this);
}

namespace {

constexpr std::pair<std::string_view, Token> kSpecial[] = {
    {"<s>", kFakeBos}, {"</s>", kFakeEos}, {"<|im_start|>", kFakeImStart}, {"<|im_end|>", kFakeImEnd}};

}  // namespace

std::string FakeVocab::text(Token token) const {
  const auto special = std::ranges::find(kSpecial, token, &std::pair<std::string_view, Token>::second);
  return std::string(special == std::end(kSpecial) ? piece(token) : special->first);
}

Expected<std::vector<Token>> FakeVocab::tokenize(std::string_view text, bool parse_special) const {
  std::vector<Token> tokens;
  while (!text.empty()) {
    const auto special =
        std::ranges::find_if(kSpecial, [&](const auto& entry) { return parse_special && text.starts_with(entry.first); });
    if (special != std::end(kSpecial)) {
      tokens.push_back(special->second);
      text.remove_prefix(special->first.size());
    } else {
      tokens.push_back(static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
    }
  }
  return tokens;
}

std::string_view FakeVocab::piece(Token token) const {
  return token >= 0 && token < 256 ? std::string_view(bytes_).substr(static_cast<std::size_t>(token), 1) : std::string_view();
}

FakeModel::FakeModel(const FakeOptions& options) : options_(options) {
  facts_.name = "fake";
  facts_.description = "fake model";
  facts_.identity = "fake";
  facts_.train_tokens = options_.cells;
  facts_.bos_text = "<s>";
  facts_.eos_text = "</s>";
  facts_.capability = options_.capability;
  facts_.is_on_devices = options_.is_on_devices;
  if (options_.is_on_devices) facts_.devices = "on Fake0";
  facts_.text_frame = {.before = {kFakeBos}, .after = {kFakeEos}, .between = {kFakeEos}, .after_pair = {kFakeEos}};
  facts_.chat_template = options_.chat_template;
  if (!options_.tool_template.empty()) facts_.named_templates.emplace_back("tool_use", options_.tool_template);
  for (std::int32_t i = 0; i < options_.adapters; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    facts_.adapters.push_back({.source = {.name = name, .path = name + ".gguf"}, .identity = "fake " + name, .bytes = 0});
  }
  if (options_.has_chat_template && facts_.chat_template.empty()) {
    facts_.chat_template =
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  }
}

Expected<std::unique_ptr<llm::Context>> FakeModel::new_context(const llm::ContextOptions&) const {
  return std::make_unique<FakeContext>(options_);
}

Expected<Unit> FakeModel::check_state(std::span<const std::byte> state) const {
  for (std::size_t at = sizeof(Token); at + sizeof(std::uint32_t) <= state.size(); at += FakeContext::kCellBytes) {
    std::uint32_t seen = 0;
    std::memcpy(&seen, state.data() + at, sizeof seen);
    if (seen == FakeContext::kNotFinite) return fail(ErrorCode::runtime_decode, "a key or value of the state is not finite");
  }
  return Unit{};
}

Expected<std::unique_ptr<llm::Projector>> FakeModel::load_projector(const std::string& path,
                                                                    const llm::ProjectorOptions&) const {
  return fail(ErrorCode::model_load, path + ": a fake model has no files");
}

Expected<llm::ImageLayout> FakeProjector::layout(const llm::ProjectorInput&) const {
  llm::ImageLayout layout{.tokens = {'[', kNoToken, kNoToken, kNoToken, ',', kNoToken, kNoToken, ']'},
                          .pieces = {3, 2},
                          .is_causal = facts_.has_grids};
  if (facts_.has_grids) {
    layout.grid = {.places = {{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 2, 0}, {0, 0, 0, 0}, {0, 0, 1, 0}},
                   .moves = {1, 1, 1, 0},
                   .advance = {1, 1}};
  }
  return layout;
}

Expected<std::vector<float>> FakeProjector::encode(const llm::ProjectorInput& image, llm::CallMonitor* monitor) {
  if (monitor != nullptr && monitor->wants_end()) return fail(ErrorCode::limit_wait, "the encoding was ended early");
  const std::string content = llm::pixels_hash(*std::get<const llm::Picture*>(image));
  std::vector<float> rows;
  for (std::int32_t row = 0; row < 5; ++row) {
    rows.push_back(fake_row_value(llm::image_token(content, facts_.identity, row)));
    rows.push_back(1);
  }
  return rows;
}

Expected<std::unique_ptr<llm::EmbeddingContext>> FakeModel::new_embedding(const llm::EmbeddingOptions&) const {
  FakeEmbeddingOptions options;
  options.clock = options_.clock;
  return std::make_unique<FakeEmbedding>(options);
}

Expected<std::string> FakeModel::apply_chat_template(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  if (!options_.has_library_template) return fail(ErrorCode::model_capability, "the library does not know the template");
  std::string text;
  for (const ChatMessage& message : messages) text += "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n";
  if (add_generation_prompt) text += "<|im_start|>assistant\n";
  return text;
}

std::vector<Token> fake_continuation(const FakeOptions& options, std::vector<Token> tokens, std::int32_t tokens_max,
                                     llm::TokenConstraint* constraint, const llm::AdapterSet& adapters) {
  const FakeVocab vocab;
  std::vector<Token> made;
  while (static_cast<std::int32_t>(made.size()) < tokens_max) {
    std::vector<float> logits = fake_logits(digest_of(tokens, adapters), tokens, options);
    if (constraint != nullptr) constraint->mask(logits);
    const auto token = static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
    if (vocab.is_end_of_generation(token)) break;
    if (constraint != nullptr) {
      UMA_CHECK(constraint->allows(token));
      constraint->accept(token);
    }
    tokens.push_back(token);
    made.push_back(token);
  }
  return made;
}

}  // namespace uma::testing
