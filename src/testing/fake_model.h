// A model without weights: the logits of a position are pseudo-random numbers computed from all cells up to it. A cell keeps
// its token and a digest of the cells before it, so that a wrong, missing, foreign or stale cell anywhere in a sequence changes
// the generated tokens, even if it has the right token. The rules of the library hold: bounded cells and batches, consecutive
// positions, split or unified cells. Faults and the time of a decode can be set.
#pragma once

#include <atomic>
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
#include "llm/sampling/token_constraint.h"
#include "testing/sim_clock.h"

namespace uma::testing {

// Tokens 0 to 255 are bytes, followed by the special tokens.
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

// The first number of a FakeProjector's row for this image token.
[[nodiscard]] float fake_row_value(Token token);

struct FakeOptions {
  std::int32_t cells = 256;
  std::int32_t sequences = 4;
  std::int32_t batch_rows_max = 64;
  bool unified = false;
  // See ContextShape::spare; in a split context the spare sequence has as many cells as each of the others.
  bool has_spare = false;
  bool has_chat_template = false;  // ChatML, unless a template is given.
  std::string_view chat_template = {};
  bool has_library_template = true;     // The library knows the template, too.
  std::string_view tool_template = {};  // A further template, "tool_use"; empty: none.
  // One token in this many (chosen by content) ends a generation; 0: no token does.
  std::uint32_t end_every = 0;
  // The text of each reply in a ChatML chat, before its end; empty: pseudo-random.
  std::string_view says = {};
  // The model has this many adapters, named a, b, c and so on. Each set gives other logits.
  std::int32_t adapters = 0;
  // One position in this many (chosen by content) has other logits, as in a model that disagrees there; 0: none.
  std::uint32_t differs_every = 0;
  bool can_truncate = true;  // False: truncate() works only at 0 and at the end, and an interrupted call loses its sequences.
  bool can_shift = true;     // Moved cells give the same logits as cells that were computed again.
  bool has_grids = false;    // See ContextShape; images must come from a FakeProjector with grids.
  // False: images may be named by their files alone, as before names had the pixels; then their rows are not those of a
  // FakeProjector.
  bool checks_image_rows = true;
  Capability capability = Capability::chat;
  bool is_on_devices = false;  // See ModelFacts.
  // True: a device of the model is lost. Outlives its contexts; null: it is never lost.
  std::atomic<bool>* lost = nullptr;
  SimClock* clock = nullptr;  // Advanced by decode(), save_state() and load_state(), if set.
  Duration decode_cost = std::chrono::milliseconds(1);
  Duration row_cost = std::chrono::microseconds(100);
  Duration uneven_cost{};  // More for a decode whose number of rows is no multiple of four.
  Duration state_cost{};   // Time of saving or loading one cell.
  Duration skip_cost{};    // Time of a cell that a row skips (sched::StepShape).
};

// Decides before each decode whether it fails; absent: never. decode() returns the fault without computing, except for
// not_finite: then the whole call is computed, and its values are not finite. A decode_error loses what was moved since the
// last decode. `lost` sets FakeOptions::lost.
enum class FakeFault : std::uint8_t { none, decode_error, out_of_cells, interrupted_half, not_finite, throws, lost };

class FakeContext : public llm::Context {
 public:
  explicit FakeContext(const FakeOptions& options);

  [[nodiscard]] const llm::ContextShape& shape() const override { return shape_; }
  [[nodiscard]] const std::string& state_identity() const override { return identity_; }
  [[nodiscard]] bool is_lost() const override { return options_.lost != nullptr && options_.lost->load(); }
  [[nodiscard]] Expected<llm::DecodeStatus> decode(std::span<const llm::BatchRow> rows, llm::CallMonitor* monitor) override;
  // The rows must come from a FakeProjector for these tokens.
  [[nodiscard]] Expected<llm::DecodeStatus> decode_image(const llm::ImageRows& rows, llm::CallMonitor* monitor) override;
  [[nodiscard]] std::span<float> logits(std::int32_t row) override;
  [[nodiscard]] std::int32_t sequence_length(std::int32_t sequence) override;
  [[nodiscard]] bool can_truncate(std::int32_t sequence, std::int32_t begin) override;
  [[nodiscard]] bool truncate(std::int32_t sequence, std::int32_t begin) override;
  void shift(std::int32_t sequence, std::int32_t begin, std::int32_t end) override;
  void share(std::int32_t from, std::int32_t to, std::int32_t count) override;
  void clear() override;
  void set_threads(std::int32_t threads) override { threads_ = threads; }
  // Cells that were computed with other adapters count as wrong.
  void use_adapters(const llm::AdapterSet& set) override { adapters_ = set; }
  [[nodiscard]] std::uint64_t state_bytes(std::int32_t sequence) const override {
    return held_[static_cast<std::size_t>(sequence)].size() * kCellBytes;
  }
  [[nodiscard]] Expected<Unit> save_state(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) override;
  [[nodiscard]] Expected<Unit> load_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                          std::span<const std::byte> bytes) override;
  [[nodiscard]] Expected<Unit> move_cells(std::int32_t sequence, std::int32_t begin, std::int32_t end, Bytes& bytes) override;

  // Size of a cell in a saved state: its token and its digest.
  static constexpr std::size_t kCellBytes = sizeof(Token) + sizeof(std::uint32_t);
  // The digest of a cell whose values are not finite. As in the library, a cell that is not finite, held or free, makes
  // everything computed in its stream not finite.
  static constexpr std::uint32_t kNotFinite = 0x7fc00000;

  // Queries and settings of the simulator. Returns the tokens of the first cells of a sequence, at most `count`.
  [[nodiscard]] std::vector<Token> cached(std::int32_t sequence, std::size_t count) const;
  [[nodiscard]] std::int32_t threads() const { return threads_; }
  [[nodiscard]] std::int64_t shifts() const { return shifts_; }
  // The number of cells up to the last used one.
  [[nodiscard]] std::size_t top() const;
  // Number of moved cells in the sequence.
  [[nodiscard]] std::int64_t moved_cells(std::int32_t sequence) const;
  // Changes a cell, so that it no longer matches its token.
  void damage(std::int32_t sequence, std::size_t position) {
    cells_[held_[static_cast<std::size_t>(sequence)][position]].seen ^= 1;
  }
  void spoil(std::int32_t sequence, std::size_t position) {
    cells_[held_[static_cast<std::size_t>(sequence)][position]].seen = kNotFinite;
    is_spoiled_ = true;
  }
  std::function<FakeFault(std::span<const llm::BatchRow>)> fault;
  bool fail_state = false;         // Makes save_state and load_state fail.
  std::function<void()> on_state;  // Called before a state is saved or loaded.
  std::int64_t cells_saved = 0;    // By save_state.
  std::int64_t cells_loaded = 0;   // By load_state.
  std::int64_t cells_moved = 0;    // By move_cells.

 private:
  struct Cell {
    Token token = 0;
    std::uint32_t seen = 0;  // Digest of all tokens up to and including this one, and the number of the adapters.
    bool is_moved = false;   // Moved by a shift.
    std::uint16_t holders = 0;
  };
  // Cells of a sequence, by position.
  using Held = std::vector<std::uint32_t>;

  [[nodiscard]] std::size_t stream_of(std::size_t sequence) const { return options_.unified ? 0 : sequence; }
  [[nodiscard]] std::uint64_t digest_of(const Held& held, std::uint32_t salt) const;
  [[nodiscard]] std::vector<Token> tokens_of(const Held& held) const;
  [[nodiscard]] bool divides_image(std::int32_t sequence, std::int32_t position) const;
  void append(std::size_t sequence, Token token, std::uint32_t seen);
  [[nodiscard]] bool is_spoiled(std::size_t stream) const;
  void set_free(std::size_t stream, std::uint32_t cell);
  [[nodiscard]] std::int64_t skipped_by(std::span<const llm::BatchRow> rows) const;
  void keep(std::size_t sequence, std::size_t count);

  FakeOptions options_;
  llm::ContextShape shape_;
  llm::AdapterSet adapters_;
  std::int32_t threads_ = 1;
  std::string identity_ = "fake";
  std::vector<Cell> cells_;                       // The cells of one stream follow those of another.
  std::vector<std::vector<std::uint32_t>> free_;  // Per stream: free cells; the lowest is the last.
  std::vector<Held> held_;                        // Per sequence.
  std::vector<std::size_t> shifted_from_;         // Per sequence: moved since the last decode from here on.
  std::int64_t shifts_ = 0;
  bool is_spoiled_ = false;  // Some cell may be not finite.
  std::map<std::int32_t, std::vector<float>> logits_;
};

// Reads any bytes as an image of two pieces, of three rows and two rows, with marks around them: [ rows , rows ]. Each row
// contains its image token (llm/image_tokens.h; the hash is SHA-256), so that a context notices a foreign row. With `has_grids`
// the rows are columns of one line, and do not see each other.
class FakeProjector final : public llm::Projector {
 public:
  explicit FakeProjector(bool has_grids = false) {
    facts_ = {.identity = "fake projector", .row_width = 2, .has_grids = has_grids};
  }
  [[nodiscard]] const llm::ProjectorFacts& facts() const override { return facts_; }
  [[nodiscard]] Expected<llm::ImageLayout> layout(const llm::ProjectorInput& image) const override;
  [[nodiscard]] Expected<std::vector<float>> encode(const llm::ProjectorInput& image, llm::CallMonitor* monitor) override;

 private:
  llm::ProjectorFacts facts_;
};

class FakeVocab final : public llm::Vocab {
 public:
  explicit FakeVocab(bool adds_space_prefix = false);
  [[nodiscard]] std::int32_t size() const override { return kFakeVocabularySize; }
  [[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view text, bool parse_special) const override;
  [[nodiscard]] std::string_view piece(Token token) const override;
  [[nodiscard]] std::string text(Token token) const override;
  [[nodiscard]] std::span<const llm::OrderedPiece> ordered_pieces() const override { return ordered_pieces_; }
  [[nodiscard]] bool is_end_of_generation(Token token) const override { return token == kFakeEos || token == kFakeImEnd; }
  [[nodiscard]] std::span<const Token> end_of_generation() const override { return end_; }
  [[nodiscard]] std::optional<Token> bos() const override { return kFakeBos; }
  [[nodiscard]] bool adds_space_prefix() const override { return adds_space_prefix_; }
  [[nodiscard]] std::size_t token_bytes_max(bool parse_special) const override {
    return parse_special ? std::string_view("<|im_start|>").size() : 1;
  }

 private:
  bool adds_space_prefix_;
  std::string bytes_;
  std::vector<Token> end_{kFakeEos, kFakeImEnd};
  std::vector<llm::OrderedPiece> ordered_pieces_;
};

class FakeModel final : public llm::Model {
 public:
  explicit FakeModel(const FakeOptions& options);
  [[nodiscard]] const llm::ModelFacts& facts() const override { return facts_; }
  [[nodiscard]] const llm::Vocab& vocab() const override { return vocab_; }
  [[nodiscard]] bool is_lost() const override { return options_.lost != nullptr && options_.lost->load(); }
  // The shape and the faults come from the FakeOptions; `options` is ignored.
  [[nodiscard]] Expected<std::unique_ptr<llm::Context>> new_context(const llm::ContextOptions& options) const override;
  [[nodiscard]] Expected<Unit> check_state(std::span<const std::byte> state) const override;
  [[nodiscard]] Expected<std::unique_ptr<llm::Projector>> load_projector(const std::string& path,
                                                                         const llm::ProjectorOptions& options) const override;
  // The same for embedding contexts (fake_embedding.h).
  [[nodiscard]] Expected<std::unique_ptr<llm::EmbeddingContext>> new_embedding(
      const llm::EmbeddingOptions& options) const override;
  [[nodiscard]] Expected<std::string> apply_chat_template(std::span<const ChatMessage> messages,
                                                          bool add_generation_prompt) const override;

 private:
  FakeOptions options_;
  FakeVocab vocab_;
  llm::ModelFacts facts_;
};

// The greedy continuation of `tokens` by a model with these options: the oracle for the engine's output. Ends before an
// end-of-generation token, or after `tokens_max` new tokens. Follows and advances `constraint`, if there is one.
[[nodiscard]] std::vector<Token> fake_continuation(const FakeOptions& options, std::vector<Token> tokens,
                                                   std::int32_t tokens_max, llm::TokenConstraint* constraint = nullptr,
                                                   const llm::AdapterSet& adapters = {});

}  // namespace uma::testing
