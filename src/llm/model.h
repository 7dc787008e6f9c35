// Model, Vocab and Context as the rest of the system sees them. llama_model.h makes the real ones, testing/fake_model.h those
// of the simulator.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
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
#include "llm/embedding.h"
#include "llm/piece_order.h"
#include "llm/projector.h"

namespace uma::llm {

// A model's tokens. Immutable: any thread.
class Vocab {
 public:
  virtual ~Vocab() = default;
  [[nodiscard]] virtual std::int32_t size() const = 0;
  // Tokens of `text` as a continuation: no BOS, no leading space of the tokenizer's own (see bos, adds_space_prefix).
  // `parse_special` turns the text of control tokens into those tokens: true for templates, never for what users write.
  [[nodiscard]] virtual Expected<std::vector<Token>> tokenize(std::string_view text, bool parse_special) const = 0;
  // The bytes of one token, possibly part of a character; empty for control tokens. Lives as long as the vocabulary.
  [[nodiscard]] virtual std::string_view piece(Token token) const = 0;
  // All tokens that have text and end no generation (piece_order.h).
  [[nodiscard]] virtual std::span<const OrderedPiece> ordered_pieces() const = 0;
  [[nodiscard]] virtual bool is_end_of_generation(Token token) const = 0;
  [[nodiscard]] virtual std::span<const Token> end_of_generation() const = 0;
  // The token every chain begins with, where the model wants one.
  [[nodiscard]] virtual std::optional<Token> bos() const = 0;
  // True where the tokenizer puts a space in front of the first text of a chain (SentencePiece).
  [[nodiscard]] virtual bool adds_space_prefix() const = 0;
};

enum class KvLayout : std::uint8_t { automatic, split, unified };

enum class FlashAttention : std::uint8_t { automatic, on, off };
enum class KvType : std::uint8_t { f16, q8_0 };  // of keys and values; q8_0 needs flash attention and heads of 32 n

struct ContextOptions {
  std::int32_t cells = 0;      // KV cells, shared by all sequences; 0: from the model
  std::int32_t sequences = 8;  // sequences that may be resident at once
  bool has_spare = false;      // and one more, ContextShape::spare; in a split context with cells of its own
  std::int32_t threads = 1;    // of a call that computes one row, until set_threads()
  KvLayout layout = KvLayout::automatic;
  std::int32_t threads_batch = 0;  // of a call that computes more rows, until set_threads(); 0: as threads
  std::int32_t ubatch_rows = 512;  // rows computed at once
  FlashAttention flash_attention = FlashAttention::automatic;
  KvType kv_type = KvType::f16;
};

// What a context turned out to be: the library rounds and clamps.
struct ContextShape {
  std::int32_t cells = 0;               // of all sequences together
  std::int32_t sequence_cells_max = 0;  // of one sequence
  std::int32_t sequences = 0;           // 0 to sequences - 1
  std::int32_t spare = -1;              // one more, for what is computed on the side; -1: none
  std::int32_t batch_rows_max = 0;      // rows of one decode call
  std::int32_t ubatch_rows_max = 0;     // rows the library computes at once
  std::int32_t logits_rows_max = 0;     // rows of one decode call that may ask for logits
  std::int32_t image_rows_max = 0;      // rows of one decode_image call
  std::int32_t layers = 1;              // of the model: a computation's steps are parts of one
  bool is_unified = false;              // one pool of cells, against equal parts
  bool has_flash_attention = false;
  // Any sequence can be cut at any token at any time, and saved in pieces. False where the past is kept as a state, or only as
  // far back as a window reaches: truncate() may then fail, always or sometimes (docs/decisions/0016).
  bool can_truncate = true;
  // After a part in the middle has been forgotten, what follows can move up.
  bool can_shift = true;
  // load_state() refuses any bytes that are no state of this model. False: it must be given nobody else's.
  bool checks_states = true;
  std::uint64_t kv_bytes_per_token = 0;  // of a model that keeps states beside it, about
  std::uint64_t sequence_bytes_max = 0;  // that the longest sequence takes of the cache
  std::uint64_t memory_bytes = 0;        // that the library says it takes

  // load_state() takes a sequence in several pieces.
  [[nodiscard]] bool knows_pieces() const { return is_unified && can_truncate; }
};

struct BatchRow {
  Token token = 0;
  std::int32_t position = 0;
  std::int32_t sequence = 0;
  bool wants_logits = false;
};

// Rows of an image, of one sequence, at consecutive positions that continue it.
struct ImageRows {
  std::span<const Token> tokens;  // that stand for them in the chain
  std::span<const float> values;  // Projector::encode
  std::int32_t position = 0;      // of the first
  std::int32_t sequence = 0;
  bool is_causal = true;      // false: each sees all of them
  bool wants_logits = false;  // of the last
};

// Asked between the steps of a computation, by one of the library's threads. May wait, which holds the computation up.
class CallMonitor {
 public:
  virtual ~CallMonitor() = default;
  // True: the computation shall end early.
  virtual bool wants_end() = 0;
};

enum class DecodeStatus : std::uint8_t {
  done,
  no_room,      // no cells for these rows; nothing was kept
  interrupted,  // some rows may be in the cache, or a sequence of the call have lost all: ask sequence_length()
};

// The KV cache of some sequences and the computation on it. Owned by one lane: one thread at a time.
class Context {
 public:
  virtual ~Context() = default;
  [[nodiscard]] virtual const ContextShape& shape() const = 0;
  // What stored state must agree on to be loaded here: model, library version, cache types and layout.
  [[nodiscard]] virtual const std::string& state_identity() const = 0;

  // Computes the rows and appends them to their sequences. Rows of one sequence are at consecutive positions that continue it;
  // 1 <= rows.size() <= batch_rows_max. A `monitor` may end the computation early; null: nobody does. Errors: E_RUNTIME_001,
  // after which the length of every sequence in the batch must be asked again.
  [[nodiscard]] virtual Expected<DecodeStatus> decode(std::span<const BatchRow> rows, CallMonitor* monitor) = 0;
  // As decode(), of 1 to shape().image_rows_max rows.
  [[nodiscard]] virtual Expected<DecodeStatus> decode_image(const ImageRows& rows, CallMonitor* monitor) = 0;
  // The logits of row `row` (its index in the last decode call; it asked for them), one per vocabulary entry, in the library's
  // own buffer: valid and writable until the next decode. Empty when the library has none.
  [[nodiscard]] virtual std::span<float> logits(std::int32_t row) = 0;

  // Tokens cached for the sequence.
  [[nodiscard]] virtual std::int32_t sequence_length(std::int32_t sequence) = 0;
  // Whether the cache keeps what the tokens before `begin` left (ContextShape::can_truncate). Always at 0 and at the end.
  [[nodiscard]] virtual bool can_truncate(std::int32_t sequence, std::int32_t begin) = 0;
  // Forgets the positions from `begin` on. False, and nothing changed: it cannot.
  [[nodiscard]] virtual bool truncate(std::int32_t sequence, std::int32_t begin) = 0;
  // Forgets the positions [begin, end) and moves up what follows. That is then not what computing it anew would give: its
  // values have seen what was forgotten. The library turns the keys with the next decode: until then the sequence must not be
  // saved. REQUIRES: shape().can_shift, begin < end < the sequence's length, and no other sequence has the cells from `end` on.
  virtual void shift(std::int32_t sequence, std::int32_t begin, std::int32_t end) = 0;
  // Makes the first `count` cells of `from` also those of `to`, which is empty. In a split context a sequence is copied as a
  // state: the library would copy its cells only with the next decode, and what is saved or loaded until then would be wrong
  // without an error (docs/LIBLLAMA.md). REQUIRES: shape().is_unified, can_truncate(from, count).
  virtual void share(std::int32_t from, std::int32_t to, std::int32_t count) = 0;

  // Forgets all sequences and writes zeros into their cells. Those of a sequence that is forgotten otherwise keep their values,
  // and the library reads them with weight 0 beside what comes into the cells next: one that is not finite makes that not
  // finite too.
  virtual void clear() = 0;

  // Compute threads of the calls from now on.
  virtual void set_threads(std::int32_t threads) = 0;

  // Bytes of the state of a whole sequence, which is not empty.
  [[nodiscard]] virtual std::uint64_t state_bytes(std::int32_t sequence) const = 0;
  // The state of positions [begin, end) as opaque bytes, into `bytes`, whose memory is reused. Only unified contexts that can
  // be cut anywhere (can_truncate) know parts of a sequence; else begin is 0 and end its length.
  [[nodiscard]] virtual Expected<Unit> save_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                                  Bytes& bytes) = 0;
  // The part of `bytes` that load_state() takes. Bytes of a split context with another number of sequences are brought into the
  // form of this one, in place, where the model has one cache (those of several are refused then); all others are as they were.
  [[nodiscard]] virtual std::span<const std::byte> fit_state(Bytes& bytes) const { return bytes; }
  // Loads such bytes at the end of a sequence; the first piece goes into an empty one. Their checksum has been verified: the
  // library itself accepts damaged values. On failure the sequence is empty. Errors: E_RUNTIME_001, also for a piece that is
  // not the first where parts of a sequence are not known.
  [[nodiscard]] virtual Expected<Unit> load_state(std::int32_t sequence, std::int32_t begin, std::int32_t end,
                                                  std::span<const std::byte> bytes) = 0;
};

// Tokens that belong around a text of which a vector or a score is computed.
struct TextFrame {
  std::vector<Token> before;
  std::vector<Token> after;
  std::vector<Token> between;     // the two texts of a pair
  std::vector<Token> after_pair;  // instead of `after`
};

struct ModelFacts {
  std::string name;         // file stem
  std::string description;  // as the library says, for example "llama 134M Q8_0"
  std::string identity;     // differs between models whose KV must not be mixed
  std::uint64_t bytes = 0;
  std::uint64_t memory_bytes = 0;  // that these weights take, as the library has them
  std::uint64_t expert_bytes = 0;  // of `bytes`, of a mixture's experts
  std::int32_t experts_count = 1;
  std::int32_t experts_used = 1;  // by each token
  std::uint64_t parameters = 0;
  std::int32_t train_tokens = 0;
  std::string chat_template;  // as stored in the model; empty: none
  Capability capability = Capability::chat;
  TextFrame text_frame;         // not of chat
  std::string rerank_template;  // how it wants {query} and {document}; empty: as a pair
  std::string bos_text;         // how its template writes the tokens that begin and end a text; empty: none
  std::string eos_text;
};

// Loaded weights. Immutable: any thread; contexts may be made and used in several threads at once.
class Model {
 public:
  virtual ~Model() = default;
  [[nodiscard]] virtual const ModelFacts& facts() const = 0;
  [[nodiscard]] virtual const Vocab& vocab() const = 0;
  [[nodiscard]] virtual Expected<std::unique_ptr<Context>> new_context(const ContextOptions& options) const = 0;
  // Whether every number in a state of its contexts is finite, for one that comes from elsewhere (state_values.h). Any thread.
  [[nodiscard]] virtual Expected<Unit> check_state(std::span<const std::byte> state) const = 0;
  // Loads the file that reads images for this model; computes with `threads`. Errors: E_MODEL_002.
  [[nodiscard]] virtual Expected<std::unique_ptr<Projector>> load_projector(const std::string& path,
                                                                            std::int32_t threads) const = 0;
  // Errors: E_MODEL_003 for a model of chat.
  [[nodiscard]] virtual Expected<std::unique_ptr<EmbeddingContext>> new_embedding(const EmbeddingOptions& options) const = 0;
  // Formats messages with the model's own template where the library knows it, with ChatML where the model has none.
  // Errors: E_MODEL_003 for a template that the library does not know.
  [[nodiscard]] virtual Expected<std::string> apply_chat_template(std::span<const ChatMessage> messages,
                                                                  bool add_generation_prompt) const = 0;
};

}  // namespace uma::llm
