// A model without weights: the logits of a position are pseudo-random numbers drawn from all cells up to it. A cell keeps its
// token and a digest of the cells that it was computed from, so that a wrong, missing, foreign or stale cell anywhere in a
// sequence changes what is generated from it, also where it has the right token. Keeps the library's rules: bounded cells and
// batches, consecutive positions, split or unified cells. Faults and the price of a decode are settable.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "llm/model.h"
#include "llm/token_constraint.h"
#include "testing/sim_clock.h"

namespace uma::testing {

// Tokens 0 to 255 are bytes, then the special ones.
inline constexpr Token kFakeBos = 256;
inline constexpr Token kFakeEos = 257;
inline constexpr Token kFakeImStart = 258;
inline constexpr Token kFakeImEnd = 259;
inline constexpr std::int32_t kFakeVocabularySize = 260;

// The tokens of plain text: its bytes.
[[nodiscard]] inline std::vector<Token> fake_tokens(std::string_view text) {
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

struct FakeOptions {
  std::int32_t cells = 256;
  std::int32_t sequences = 4;
  std::int32_t batch_rows_max = 64;
  bool unified = false;
  bool has_spare = false;          // ContextShape::spare; in a split context with as many cells as each of the others
  bool has_chat_template = false;  // ChatML, unless another is given
  std::string_view chat_template = {};
  // One token in this many (by content) ends a generation; 0: none ever does.
  std::uint32_t end_every = 0;
  // What it says in each reply of a chat in ChatML, before it ends it; empty: by chance, as above.
  std::string_view says = {};
  // One position in this many (by content) has logits of its own: a model that disagrees there; 0: none.
  std::uint32_t differs_every = 0;
  bool can_truncate = true;  // false: truncate() works only at 0 and at the end, and an interrupted call loses its sequences
  bool can_shift = true;     // what was moved up says the same as what was computed anew
  Capability capability = Capability::chat;
  SimClock* clock = nullptr;  // advanced by decode() where set
  Duration decode_cost = std::chrono::milliseconds(1);
  Duration row_cost = std::chrono::microseconds(100);
};

// Decides before each decode whether it fails; absent: never. What it returns is what decode() returns without computing, but
// for not_finite: then all of the call is computed, and its values are not finite.
enum class FakeFault : std::uint8_t { none, decode_error, no_room, interrupted_half, not_finite, throws };

class FakeContext final : public llm::Context {
 public:
  explicit FakeContext(const FakeOptions& options);

  [[nodiscard]] const llm::ContextShape& shape() const override { return shape_; }
  [[nodiscard]] const std::string& state_identity() const override { return identity_; }
  [[nodiscard]] Expected<llm::DecodeStatus> decode(std::span<const llm::BatchRow> rows, llm::CallMonitor* monitor) override;
  // The rows must be those that a FakeProjector makes for these tokens.
  [[nodiscard]] Expected<llm::DecodeStatus> decode_image(const llm::ImageRows& rows, llm::CallMonitor* monitor) override;
  [[nodiscard]] std::span<float> logits(std::int32_t row) override;
  [[nodiscard]] std::int32_t sequence_length(std::int32_t sequence) override;
  [[nodiscard]] bool can_truncate(std::int32_t sequence, std::int32_t begin) override;
  [[nodiscard]] bool truncate(std::int32_t sequence, std::int32_t begin) override;
  void shift(std::int32_t sequence, std::int32_t begin, std::int32_t end) override;
  void share(std::int32_t from, std::int32_t to, std::int32_t count) override;
  void clear() override;
  void set_threads(std::int32_t threads) override { threads_ = threads; }
  [[nodiscard]] std::uint64_t state_bytes(std::int32_t sequence) const override {
    return held_[static_cast<std::size_t>(sequence)].size() * kCellBytes;
  }
  [[nodiscard]] Expected<Unit> save_state(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) override;
  [[nodiscard]] Expected<Unit> load_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                          std::span<const std::byte> bytes) override;

  // Of a cell in a saved state: its token, and what it has seen.
  static constexpr std::size_t kCellBytes = sizeof(Token) + sizeof(std::uint32_t);
  // What a cell has seen whose values are not finite. As with the library, nothing is finite that is computed in a stream one
  // of whose cells is not, held or free.
  static constexpr std::uint32_t kNotFinite = 0x7fc00000;

  // What the simulator looks at and turns.
  // The tokens that the first cells of a sequence were computed for, `count` at most.
  [[nodiscard]] std::vector<Token> cached(std::int32_t sequence, std::size_t count) const;
  [[nodiscard]] std::int32_t threads() const { return threads_; }
  [[nodiscard]] std::int64_t shifts() const { return shifts_; }
  // Cells of the sequence that were moved up.
  [[nodiscard]] std::int64_t moved_cells(std::int32_t sequence) const;
  // A cell of the sequence is no more what its token gives.
  void damage(std::int32_t sequence, std::size_t position) {
    cells_[held_[static_cast<std::size_t>(sequence)][position]].seen ^= 1;
  }
  void spoil(std::int32_t sequence, std::size_t position) {
    cells_[held_[static_cast<std::size_t>(sequence)][position]].seen = kNotFinite;
    is_spoiled_ = true;
  }
  std::function<FakeFault(std::span<const llm::BatchRow>)> fault;
  bool fail_state = false;  // save_state and load_state fail

 private:
  struct Cell {
    Token token = 0;
    std::uint32_t seen = 0;  // digest of the tokens that it was computed from, its own included
    bool is_moved = false;   // up, by a shift
    std::uint16_t holders = 0;
  };
  // Cells of a sequence, by position.
  using Held = std::vector<std::uint32_t>;

  [[nodiscard]] std::size_t stream_of(std::size_t sequence) const { return options_.unified ? 0 : sequence; }
  [[nodiscard]] std::uint64_t digest_of(const Held& held) const;
  [[nodiscard]] std::vector<Token> tokens_of(const Held& held) const;
  void append(std::size_t sequence, Token token, std::uint32_t seen);
  [[nodiscard]] bool is_spoiled(std::size_t stream) const;
  void keep(std::size_t sequence, std::size_t count);

  FakeOptions options_;
  llm::ContextShape shape_;
  std::int32_t threads_ = 1;
  std::string identity_ = "fake";
  std::vector<Cell> cells_;                       // those of a stream one after another
  std::vector<std::vector<std::uint32_t>> free_;  // per stream: those that nobody holds, the next one last
  std::vector<Held> held_;                        // per sequence
  std::int64_t shifts_ = 0;
  bool is_spoiled_ = false;  // some cell may not be finite
  std::map<std::int32_t, std::vector<float>> logits_;
};

// Reads any bytes as an image of two pieces, of three rows and two, with marks around them: [ rows , rows ]. Each row has its
// image token in it (llm/image_tokens.h; the hash is SHA-256), so that a context sees when it gets another's.
class FakeProjector final : public llm::Projector {
 public:
  FakeProjector() { facts_ = {.identity = "fake projector", .row_width = 2, .is_causal = false}; }
  [[nodiscard]] const llm::ProjectorFacts& facts() const override { return facts_; }
  [[nodiscard]] Expected<llm::ImageLayout> layout(std::span<const std::byte> image) const override;
  [[nodiscard]] Expected<std::vector<float>> encode(std::span<const std::byte> image) override;

 private:
  llm::ProjectorFacts facts_;
};

class FakeVocab final : public llm::Vocab {
 public:
  FakeVocab();
  [[nodiscard]] std::int32_t size() const override { return kFakeVocabularySize; }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view text, bool parse_special) const override;
  [[nodiscard]] std::string_view piece(Token token) const override;
  [[nodiscard]] std::span<const llm::OrderedPiece> ordered_pieces() const override { return ordered_pieces_; }
  [[nodiscard]] bool is_end_of_generation(Token token) const override { return token == kFakeEos || token == kFakeImEnd; }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return end_; }
  [[nodiscard]] std::optional<Token> bos() const override { return kFakeBos; }
  [[nodiscard]] bool adds_space_prefix() const override { return false; }

 private:
  std::string bytes_;
  std::vector<Token> end_{kFakeEos, kFakeImEnd};
  std::vector<llm::OrderedPiece> ordered_pieces_;
};

class FakeModel final : public llm::Model {
 public:
  explicit FakeModel(const FakeOptions& options);
  [[nodiscard]] const llm::ModelFacts& facts() const override { return facts_; }
  [[nodiscard]] const llm::Vocab& vocab() const override { return vocab_; }
  // Takes shape and faults from the FakeOptions, not from `options`.
  [[nodiscard]] Expected<std::unique_ptr<llm::Context>> new_context(const llm::ContextOptions& options) const override;
  [[nodiscard]] Expected<Unit> check_state(std::span<const std::byte> state) const override;
  [[nodiscard]] Expected<std::unique_ptr<llm::Projector>> load_projector(const std::string& path,
                                                                         std::int32_t threads) const override;
  // Likewise (fake_embedding.h).
  [[nodiscard]] Expected<std::unique_ptr<llm::EmbeddingContext>> new_embedding(
      const llm::EmbeddingOptions& options) const override;
  [[nodiscard]] Expected<std::string> apply_chat_template(std::span<const ChatMessage> messages,
                                                          bool add_generation_prompt) const override;

 private:
  FakeOptions options_;
  FakeVocab vocab_;
  llm::ModelFacts facts_;
};

// What a model with these options says after `tokens`, greedily: the oracle that engine output is compared with. Stops before
// an end-of-generation token, at `tokens_max` new tokens. What it says follows `constraint`, if any, which goes on with it.
[[nodiscard]] std::vector<Token> fake_continuation(const FakeOptions& options, std::vector<Token> tokens,
                                                   std::int32_t tokens_max, llm::TokenConstraint* constraint = nullptr);

}  // namespace uma::testing
