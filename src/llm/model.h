// The interfaces Model, Vocab and Context. Implementations: llama_model.h, and testing/fake_model.h for the simulator.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "core/capability.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/request.h"
#include "llm/adapters.h"
#include "llm/device/call_monitor.h"
#include "llm/device/device_bytes.h"
#include "llm/embedding.h"
#include "llm/kv_types.h"
#include "llm/media/piece_order.h"
#include "llm/media/projector.h"
#include "llm/rope.h"

namespace uma::llm {

// The control tokens around the parts of a text with a gap.
struct GapMarks {
  Token prefix = kNoToken;
  Token suffix = kNoToken;
  Token middle = kNoToken;
  std::optional<Token> repository{};  // Before the name of a repository.
  std::optional<Token> file{};        // Before the name of a file.
};

// The tokens of a model. Immutable: any thread.
class Vocab {
 public:
  virtual ~Vocab() = default;
  [[nodiscard]] virtual std::int32_t size() const = 0;
  // Tokenizes `text` as a continuation: without BOS, and without the leading space of some tokenizers (see bos,
  // adds_space_prefix). `parse_special` converts the text of control tokens to those tokens: true for templates, never for text
  // of users.
  [[nodiscard]] virtual Expected<std::vector<Token>> tokenize(std::string_view text, bool parse_special) const = 0;
  // The bytes of one token, possibly part of a character; empty for control tokens. Valid as long as the vocabulary.
  [[nodiscard]] virtual std::string_view piece(Token token) const = 0;
  // All tokens with text, without end-of-generation tokens (piece_order.h).
  [[nodiscard]] virtual std::span<const OrderedPiece> ordered_pieces() const = 0;
  [[nodiscard]] virtual bool is_end_of_generation(Token token) const = 0;
  [[nodiscard]] virtual std::span<const Token> end_of_generation() const = 0;
  // The first token of every chain, if the model has one.
  [[nodiscard]] virtual std::optional<Token> bos() const = 0;
  // Whether the tokenizer inserts a space before the first text of a chain (SentencePiece).
  [[nodiscard]] virtual bool adds_space_prefix() const = 0;
  // The text of a token; for a control token its name, such as "<|im_end|>". Requires: a token of the vocabulary.
  [[nodiscard]] virtual std::string text(Token token) const { return std::string(piece(token)); }
  // Whether tokenize() never divides the token's text, wherever it stands, although it is text: "<tool_call>" of some models.
  [[nodiscard]] virtual bool is_user_defined(Token) const { return false; }
  // The most bytes of text that become one token, or more. `parse_special`: as for tokenize().
  [[nodiscard]] virtual std::size_t token_bytes_max(bool /*parse_special*/) const { return SIZE_MAX; }
  // Nullopt: the model fills no gaps.
  [[nodiscard]] virtual std::optional<GapMarks> gap_marks() const { return std::nullopt; }
};

enum class KvLayout : std::uint8_t { automatic, split, unified };

enum class FlashAttention : std::uint8_t { automatic, on, off };

struct ContextOptions {
  std::int32_t cells = 0;           // KV cells of all sequences together; 0: chosen (context_layout.h).
  std::int32_t sequence_cells = 0;  // Limit of one sequence; 0: what its cells allow.
  std::int32_t sequences = 8;       // Maximum number of resident sequences.
  bool has_spare = false;           // True: one more sequence (ContextShape::spare), in a split context with its own cells.
  std::int32_t threads = 1;         // Compute threads of a call for one row, until set_threads().
  KvLayout layout = KvLayout::automatic;
  std::int32_t threads_batch = 0;  // Compute threads of a call for several rows, until set_threads(); 0: as threads.
  std::int32_t ubatch_rows = 512;  // Rows computed at once.
  FlashAttention flash_attention = FlashAttention::automatic;
  KvTypes kv_types{};
  RopeOptions rope{};
  std::optional<Pooling> pooling{};  // Given: the context is one of an embedding model (EmbeddingOptions::pooling).
};

// The actual shape of a context, after the library's rounding and limits.
struct ContextShape {
  std::int32_t cells = 0;               // All sequences together.
  std::int32_t sequence_cells_max = 0;  // Limit of one sequence.
  std::int32_t sequences = 0;           // Numbered 0 to sequences - 1.
  std::int32_t spare = -1;              // One more sequence for side computations; -1: none.
  std::int32_t batch_rows_max = 0;      // Rows of one decode call.
  std::int32_t ubatch_rows_max = 0;     // Rows that the library computes at once.
  std::int32_t logits_rows_max = 0;     // Rows with logits in one decode call.
  std::int32_t image_rows_max = 0;      // Rows of one decode_image call without a grid; with a grid: batch_rows_max.
  std::int32_t layers = 1;              // Layers of the model; a computation can be interrupted between layers.
  // Arithmetic of a row's attention to one cached token, relative to the row's arithmetic with all weights; 0: unknown.
  double attention_share = 0;
  // The tokens that the model supports with the context's RoPE options (supported_tokens()); 0: they are those of its file.
  std::int64_t rope_tokens = 0;
  bool is_unified = false;  // True: one pool of cells; false: equal parts.
  bool has_flash_attention = false;
  // True: any sequence can be truncated at any token at any time, and saved in pieces. False: some layers keep a state of the
  // past, or only a window of it, so truncate() fails always or sometimes (docs/decisions/0016).
  bool can_truncate = true;
  // After a part in the middle is removed, the tokens behind it can move up.
  bool can_shift = true;
  // The model has positions of several dimensions (M-RoPE): a sequence cannot be cut within an image.
  bool has_grids = false;
  // True: load_state() refuses bytes that are not a state of this model. False: it must only be given states of this model.
  bool checks_states = true;
  std::uint64_t kv_bytes_per_token = 0;  // For a model that also keeps states: an approximation.
  std::uint64_t sequence_bytes_max = 0;  // Cache bytes of the longest sequence.
  std::uint64_t memory_bytes = 0;        // Bytes that the library reports.
  DeviceBytes on_devices{};              // Part of memory_bytes.

  // Whether load_state() accepts a sequence in several pieces.
  [[nodiscard]] bool knows_pieces() const { return is_unified && can_truncate; }
  [[nodiscard]] bool can_move_cells() const { return knows_pieces() && !has_grids; }
};

struct BatchRow {
  Token token = 0;
  std::int32_t position = 0;
  std::int32_t sequence = 0;
  bool wants_logits = false;
};

enum class DecodeStatus : std::uint8_t {
  done,
  out_of_cells,  // No cells for these rows; nothing was kept.
  interrupted,   // Some rows may be in the cache, or a sequence of the call may have lost everything: call sequence_length().
};

// The KV cache of several sequences and the computation on it. Owned by one lane: one thread at a time. A position in this
// interface is a number of tokens; the context knows the library's positions (position_map.h).
class Context {
 public:
  virtual ~Context() = default;
  [[nodiscard]] virtual const ContextShape& shape() const = 0;
  // Identifies compatible states: model, devices, library version, cache types, layout and RoPE options. The identity of a
  // state that was computed with adapters continues with AdapterSet::identity.
  [[nodiscard]] virtual const std::string& state_identity() const = 0;
  // A device of the model is lost: the context computes no more, and saves and loads no states. Any thread.
  [[nodiscard]] virtual bool is_lost() const { return false; }
  // The loss as a text for people. Requires: is_lost().
  [[nodiscard]] virtual std::string loss() const { return "a device of the model has failed"; }

  // Computes the rows and appends them to their sequences. Requires: rows of one sequence are at consecutive positions that
  // continue it; 1 <= rows.size() <= batch_rows_max. `monitor` may end the computation early; null: no monitor. Errors:
  // E_RUNTIME_001; the caller must then call sequence_length() for every sequence of the batch, and of those that were shifted
  // since the last decode, which have lost what was moved.
  [[nodiscard]] virtual Expected<DecodeStatus> decode(std::span<const BatchRow> rows, CallMonitor* monitor) = 0;
  // Computes the rows of an image as decode() does: 1 to shape().image_rows_max rows, or all rows of a piece with a grid, up to
  // batch_rows_max. All rows of a piece with a grid are in the cache after the call, or none.
  [[nodiscard]] virtual Expected<DecodeStatus> decode_image(const ImageRows& rows, CallMonitor* monitor) = 0;
  // The logits of row `row` of the last decode call, one per vocabulary entry, in the library's buffer: valid and writable
  // until the next decode. Empty if the library has none. Requires: the row wanted logits.
  [[nodiscard]] virtual std::span<float> logits(std::int32_t row) = 0;

  // The cached tokens of the sequence.
  [[nodiscard]] virtual std::int32_t sequence_length(std::int32_t sequence) = 0;
  // Whether the cache still has the state before `begin` (ContextShape::can_truncate). Always true at 0 and at the end; false
  // within an image with a grid.
  [[nodiscard]] virtual bool can_truncate(std::int32_t sequence, std::int32_t begin) = 0;
  // Removes the positions from `begin` on. False: impossible, and nothing has changed.
  [[nodiscard]] virtual bool truncate(std::int32_t sequence, std::int32_t begin) = 0;
  // Removes the positions [begin, end) and moves up the positions behind them. The result differs from a fresh computation,
  // because the moved values were computed with the removed tokens. The library rotates the keys with the next decode; until
  // then the sequence must not be saved, and a decode that fails loses the moved positions. Requires: shape().can_shift, begin
  // < end < the sequence's length, and no other sequence shares the cells from `end` on.
  virtual void shift(std::int32_t sequence, std::int32_t begin, std::int32_t end) = 0;
  // Shares the first `count` cells of `from` with `to`, which is empty. In a split context a sequence must be copied as a state
  // instead: the library would copy its cells only with the next decode, and states saved or loaded before that would be
  // silently wrong (docs/LIBLLAMA.md). Requires: shape().is_unified, can_truncate(from, count).
  virtual void share(std::int32_t from, std::int32_t to, std::int32_t count) = 0;

  // Removes all sequences and fills their cells with zeros. Other removals leave the values in the cells, and the library reads
  // them with weight 0 beside new tokens: a value that is not finite would spread to them.
  virtual void clear() = 0;

  // Sets the compute threads of later calls.
  virtual void set_threads(std::int32_t threads) = 0;
  // Sets the adapters of later calls; at first there are none. A change costs the next call a few milliseconds. Requires: the
  // set was made for this context's model.
  virtual void use_adapters(const AdapterSet& set) = 0;

  // The state size of a whole sequence, which is not empty.
  [[nodiscard]] virtual std::uint64_t state_bytes(std::int32_t sequence) const = 0;
  // Writes the state of positions [begin, end) into `bytes`, whose memory is reused. Parts of a sequence need a unified context
  // with can_truncate, and do not begin or end within an image with a grid; in others, begin is 0 and end is the length of the
  // sequence.
  [[nodiscard]] virtual Expected<Unit> save_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                                  Bytes& bytes) = 0;
  // Returns the part of `bytes` for load_state(). A state from a split context with another number of sequences is converted in
  // place if the model has one cache; with several caches, load_state() refuses such a state. Other states stay unchanged.
  [[nodiscard]] virtual std::span<const std::byte> fit_state(Bytes& bytes) const { return bytes; }
  // Loads a state at the end of a sequence; the first piece needs an empty sequence. Requires: a verified checksum, because the
  // library accepts damaged values. On failure the sequence is empty. Errors: E_RUNTIME_001, also for a later piece in a
  // context without knows_pieces().
  [[nodiscard]] virtual Expected<Unit> load_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                                  std::span<const std::byte> bytes) = 0;
  // Moves the cells of positions [begin, end) to the lowest free ones; `bytes` is memory for the work. The values stay the
  // same. Requires: shape().can_move_cells(), and no other sequence shares the cells. On failure the sequence may end at
  // `begin`. Errors: E_RUNTIME_001.
  [[nodiscard]] virtual Expected<Unit> move_cells(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                                  Bytes& bytes) = 0;
};

// Special tokens around the text of a vector or a score.
struct TextFrame {
  std::vector<Token> before;
  std::vector<Token> after;
  std::vector<Token> between;     // Between the two texts of a pair.
  std::vector<Token> after_pair;  // Behind a pair, instead of `after`.
};

struct ModelFacts {
  std::string name;            // Stem of the file name.
  std::string description;     // The library's description, for example "llama 134M Q8_0".
  std::string identity;        // Differs between models with incompatible KV.
  std::string devices;         // For people, "on Vulkan0" or "2 of 5 layers on Vulkan0"; empty: the CPU computes all layers.
  bool is_on_devices = false;  // The CPU computes no layer.
  std::uint64_t bytes = 0;
  std::uint64_t memory_bytes = 0;  // Memory of these weights in the library.
  DeviceBytes on_devices{};        // Part of `memory_bytes`.
  std::uint64_t expert_bytes = 0;  // The part of `bytes` for the experts of a mixture.
  std::int32_t experts_count = 1;
  std::int32_t experts_used = 1;  // Experts computed for each token.
  std::uint64_t parameters = 0;
  std::int32_t train_tokens = 0;
  std::string chat_template;  // Stored in the model; empty: none.
  // Further templates by their names, such as "tool_use".
  std::vector<std::pair<std::string, std::string>> named_templates;
  Capability capability = Capability::chat;
  TextFrame text_frame;         // Not used for chat models.
  std::string rerank_template;  // The format of {query} and {document}; empty: a pair.
  std::string bos_text;         // The text of the BOS token in templates; empty: none.
  std::string eos_text;
  std::vector<AdapterFacts> adapters;  // Their memory is part of `memory_bytes`.
};

// Makes a context of a model in which a sequence can have up to `cells` tokens. Any thread.
using MakeContext = std::function<Expected<std::unique_ptr<Context>>(std::int32_t cells)>;

// Loaded weights. Immutable: any thread. Contexts may be made and used on several threads at once.
class Model {
 public:
  virtual ~Model() = default;
  [[nodiscard]] virtual const ModelFacts& facts() const = 0;
  // A device of the model is lost: its contexts compute no more. Loading the model again may find the device again.
  [[nodiscard]] virtual bool is_lost() const { return false; }
  [[nodiscard]] virtual const Vocab& vocab() const = 0;
  [[nodiscard]] virtual Expected<std::unique_ptr<Context>> new_context(const ContextOptions& options) const = 0;
  // Checks that every number in a state is finite; for states from other sources (state_values.h). Any thread.
  [[nodiscard]] virtual Expected<Unit> check_state(std::span<const std::byte> state) const = 0;
  // Loads a projector file for this model. Errors: E_MODEL_002.
  [[nodiscard]] virtual Expected<std::unique_ptr<Projector>> load_projector(const std::string& path,
                                                                            const ProjectorOptions& options) const = 0;
  // Errors: E_MODEL_003 for a chat model.
  [[nodiscard]] virtual Expected<std::unique_ptr<EmbeddingContext>> new_embedding(const EmbeddingOptions& options) const = 0;
  // Formats messages with the model's template if the library knows it, and with ChatML if the model has no template. Errors:
  // E_MODEL_003 for a template that the library does not know.
  [[nodiscard]] virtual Expected<std::string> apply_chat_template(std::span<const ChatMessage> messages,
                                                                  bool add_generation_prompt) const = 0;
};

}  // namespace uma::llm
