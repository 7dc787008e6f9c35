#include "engine/session/portable_session.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <format>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/limits.h"
#include "engine/session/record_input.h"
#include "image/image_header.h"
#include "image/image_id.h"
#include "image/image_runs.h"
#include "image/message_images.h"
#include "kv/disk/portable_state.h"
#include "kv/disk/session_file.h"
#include "llm/detokenizer.h"
#include "llm/media/image_tokens.h"
#include "wire/generate_fields.h"
#include "wire/own/metadata_fields.h"

namespace uma::engine {
namespace {

template <class T>
void add_value(Bytes& out, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void add_text(Bytes& out, std::string_view text) {
  add_value(out, text.size());
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// The cost of tokenizing a conversation again, in bytes of text; each message adds a constant.
std::size_t text_bytes(const kv::SessionFile& file) {
  constexpr std::size_t kPerMessage = 16;
  std::size_t total = file.text.size();
  for (const std::vector<ChatMessage>* messages : {&file.record.messages, &file.record.pending_messages}) {
    for (const ChatMessage& message : *messages) total += kPerMessage + message.content.size() + message.extra.size();
  }
  return total;
}

std::size_t content_bytes(const std::vector<ChatMessage>& messages) {
  std::size_t total = 0;
  for (const ChatMessage& message : messages) total += message.content.size();
  return total;
}

// Whether the tokens can have the texts of the messages: a template may leave something out, but no token is longer than the
// vocabulary's longest. A system message that waits for an input has no tokens yet.
bool may_have_texts(const llm::Vocab& vocab, const kv::SessionRecord& record) {
  const std::size_t bytes =
      content_bytes(record.messages) + (record.pending.empty() ? 0 : content_bytes(record.pending_messages));
  const std::size_t tokens = record.chain.size() + record.pending.size();
  return bytes == 0 || (tokens > 0 && (bytes - 1) / tokens < vocab.token_bytes_max(true));
}

// The record of a file whose tokens are from another vocabulary.
Expected<kv::SessionRecord> retokenized(const chat::ChatFormat& format, kv::SessionFile file) {
  kv::SessionRecord& old = file.record;
  kv::SessionRecord made;
  static_cast<kv::SessionHead&>(made) = static_cast<const kv::SessionHead&>(old);
  made.tools = old.tools;
  made.template_arguments = old.template_arguments;
  made.metadata = old.metadata;
  made.n_keep = made.turns_dropped = 0;  // These count tokens and turns, which are made again.
  if (made.mode != SessionMode::chat) {
    if (file.text.empty()) return made;
    return append_to_record(format, made, {.text = std::move(file.text), .messages = {}});
  }
  const bool has_reply = old.messages.size() >= 2 && old.messages.back().role == "assistant";
  if (!has_reply) {
    // All turns were dropped. The messages that were kept, such as the system prompt, become pending before the input.
    old.pending_messages.insert(old.pending_messages.begin(), old.messages.begin(), old.messages.end());
  } else {
    ChatMessage reply = std::move(old.messages.back());
    old.messages.pop_back();
    auto begun = append_to_record(format, made, {.text = {}, .messages = std::move(old.messages)});
    if (!begun) return begun;
    const auto tokens = format.model().vocab().tokenize(reply.content, false);
    if (!tokens) return std::unexpected(tokens.error());
    made = std::move(*begun);
    made.chain = std::exchange(made.pending, {});
    made.turns = {{.tokens_begin = 0, .reply_begin = static_cast<std::int32_t>(made.chain.size()), .messages_begin = 0}};
    made.chain.insert(made.chain.end(), tokens->begin(), tokens->end());
    made.messages = std::exchange(made.pending_messages, {});
    made.messages.push_back(std::move(reply));
  }
  if (old.pending.empty()) {
    // A pending system message without input has no tokens yet.
    made.pending_messages = std::move(old.pending_messages);
    return made;
  }
  return append_to_record(format, made, {.text = {}, .messages = std::move(old.pending_messages)});
}

// Reads the conversation at the beginning of a file. The length that the file states is limited by the size of the file and of
// a conversation.
Bytes read_conversation(PortableReader& in) {
  Bytes bytes(std::min(in.left(), kv::kSessionPrefixBytes));
  in.read(bytes);
  if (bytes.size() < kv::kSessionPrefixBytes) return bytes;
  const std::size_t length = kv::conversation_bytes(std::span(bytes).first<kv::kSessionPrefixBytes>());
  const std::size_t whole = std::min({length, kv::kSessionPrefixBytes + in.left(), kConversationBytesMax});
  if (whole <= kv::kSessionPrefixBytes) return bytes;
  bytes.resize(whole);
  in.read(std::span(bytes).subspan(kv::kSessionPrefixBytes));
  return bytes;
}

// The images follow the conversation: the magic, the number of images (8 bytes), and for each image its length (8 bytes) and
// its bytes.
constexpr std::string_view kImagesMagic = "umaimage";
constexpr std::uint64_t kImagesMax = 65'536;

std::unexpected<Error> refuse_file(std::string_view why) {
  return fail(ErrorCode::proto_field, std::format("the session file cannot be used: {}", why));
}

template <class T>
T read_value(PortableReader& in) {
  T value{};
  in.read(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// Reads the images behind the conversation, one after another.
class ImagesReader {
 public:
  // `in` is at the end of the conversation. Errors: E_PROTO_003.
  static Expected<ImagesReader> open(const PortableReader& in) {
    constexpr std::size_t kHead = kImagesMagic.size() + sizeof(std::uint64_t);
    ImagesReader reader(in);
    if (in.left() < kHead) return reader;
    PortableReader ahead = in;
    std::string magic(kImagesMagic.size(), '\0');
    ahead.read(std::as_writable_bytes(std::span(magic)));
    if (magic != kImagesMagic) return reader;
    reader.left_ = read_value<std::uint64_t>(ahead);
    if (reader.left_ == 0 || reader.left_ > kImagesMax) {
      return refuse_file("its number of images is impossible");
    }
    reader.in_ = ahead;
    return reader;
  }
  [[nodiscard]] bool is_at_end() const { return left_ == 0; }
  // Errors: E_PROTO_003. Requires: not at the end.
  Expected<Bytes> next() {
    const std::uint64_t length = in_.left() < sizeof(std::uint64_t) ? 0 : read_value<std::uint64_t>(in_);
    if (length == 0 || length > in_.left() || length > image::kImageBytesMax) {
      return refuse_file("it ends within its images");
    }
    --left_;
    Bytes file(length);
    in_.read(file);
    return file;
  }
  // The rest of the file. Requires: at the end.
  [[nodiscard]] const PortableReader& rest() const { return in_; }

 private:
  explicit ImagesReader(const PortableReader& in) : in_(in) {}

  PortableReader in_;
  std::uint64_t left_ = 0;
};

// The rest of a file after its images.
Expected<PortableReader> skip_images(const PortableReader& in) {
  auto images = ImagesReader::open(in);
  while (images && !images->is_at_end()) {
    if (auto file = images->next(); !file) return std::unexpected(file.error());
  }
  if (!images) return std::unexpected(images.error());
  return images->rest();
}

// The ids of the images of all messages, each id once (image/image_id.h).
std::vector<std::string> image_ids_of(const kv::SessionRecord& record) {
  std::vector<std::string> ids;
  std::unordered_set<std::string> known;
  for (const auto* messages : {&record.messages, &record.pending_messages}) {
    for (const ChatMessage& message : *messages) {
      for (image::MessageImage& image : image::images_of(message)) {
        if (known.insert(image.id).second) ids.push_back(std::move(image.id));
      }
    }
  }
  return ids;
}

// Normalizes the other fields of a message. False: a request could not have them, or an image of the message is not in the
// file.
bool normalize_message(ChatMessage& message, const std::unordered_set<std::string>& images) {
  const std::vector<image::MessageImage> shown = image::images_of(message);
  const auto has_come = [&](const image::MessageImage& image) { return images.contains(image::file_of(image.id)); };
  const bool may_show = shown.empty() || message.role == "user" || message.role == "tool";
  if (!may_show || !std::ranges::all_of(shown, has_come) || !wire::normalize_extra(message)) return false;
  if (!shown.empty()) message.extra = image::with_images(message.extra, shown);
  return true;
}

bool are_of_vocabulary(const kv::SessionRecord& record, Token size, bool may_be_images) {
  return std::ranges::all_of(std::array{&record.chain, &record.pending}, [&](const std::vector<Token>* tokens) {
    return std::ranges::all_of(*tokens,
                               [&](Token token) { return token < size || (may_be_images && llm::is_image_token(token)); });
  });
}

// Whether a turn, a reply or the kept tokens begin or end within an image, so that dropping or rewinding would cut it.
bool cuts_an_image(const kv::SessionRecord& record, std::span<const image::ImageRun> runs) {
  return image::is_within_run(runs, record.n_keep) || std::ranges::any_of(record.turns, [&](const kv::Turn& turn) {
           return image::is_within_run(runs, turn.tokens_begin) || image::is_within_run(runs, turn.reply_begin);
         });
}

}  // namespace

kv::Checksum vocabulary_of(const llm::Model& model) {
  const llm::Vocab& vocab = model.vocab();
  Bytes all;
  add_value(all, vocab.size());
  for (Token token = 0; token < vocab.size(); ++token) add_text(all, vocab.piece(token));
  add_value(all, vocab.bos().value_or(kNoToken));
  for (const Token token : vocab.end_of_generation()) add_value(all, token);
  add_value(all, vocab.adds_space_prefix());
  add_text(all, model.facts().chat_template);
  for (const auto& [name, text] : model.facts().named_templates) {
    add_text(all, name);
    add_text(all, text);
  }
  return kv::hash_of(all);
}

std::string text_of(const llm::Vocab& vocab, std::span<const Token> chain) {
  std::string text;
  llm::Detokenizer detokenizer(vocab);
  for (const Token token : chain) detokenizer.push(token, text);
  detokenizer.finish(text);
  // The tokenizer adds a space to the start of the chain, which is not part of the text.
  if (vocab.adds_space_prefix() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

Bytes export_record(const llm::Model& model, const kv::SessionRecord& record) {
  kv::SessionFile file{.record = record, .vocabulary = vocabulary_of(model), .text = {}};
  if (record.mode == SessionMode::text) file.text = text_of(model.vocab(), kv::all_tokens(record));
  return kv::encode_session_file(file);
}

Expected<PortableFile> export_images(const image::ImageEncoder& encoder, const kv::SessionRecord& record,
                                     const std::shared_ptr<ByteBudget>& budget) {
  struct Held {
    std::vector<Bytes> images;
    std::vector<Bytes> heads;
    ByteBudget::Share share;
  };
  std::vector<std::string> ids = image_ids_of(record);
  // A file is included once, also if it was shown before and after tokens were made from pixels.
  std::unordered_set<std::string> files;
  std::erase_if(ids, [&](const std::string& id) { return !files.insert(image::file_of(id)).second; });
  if (ids.empty()) return PortableFile{};
  auto held = std::make_shared<Held>(std::vector<Bytes>(), std::vector<Bytes>(), ByteBudget::Share(budget));
  for (const std::string& id : ids) {
    auto image = encoder.read_kept(id);
    if (!image) return std::unexpected(image.error());
    if (!held->share.grow(image->size())) {
      return fail(ErrorCode::limit_wait,
                  std::format("exports in progress hold {} of {} bytes (limits.transfer_bytes_max): try again later",
                              budget->bytes_used(), budget->bytes_max()));
    }
    Bytes head;
    if (held->heads.empty()) {
      const auto magic = std::as_bytes(std::span(kImagesMagic));
      head.insert(head.end(), magic.begin(), magic.end());
      add_value(head, std::uint64_t{ids.size()});
    }
    add_value(head, std::uint64_t{image->size()});
    held->heads.push_back(std::move(head));
    held->images.push_back(std::move(*image));
  }
  PortableFile file{.parts = {}, .owner = held};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    file.parts.emplace_back(held->heads[i]);
    file.parts.emplace_back(held->images[i]);
  }
  return file;
}

namespace {

// The import of a file's images into the folder.
struct ImageImport {
  WorkPool& work;
  std::shared_ptr<image::ImageEncoder> encoder;
  TenantId tenant;
  PortableFile file;
  std::unordered_set<std::string> wanted;
  std::optional<ImagesReader> in;  // reads `file`
  ImportedImages kept{};
  ImportedImages::Done done;
};

Expected<Unit> import_image(ImageImport& import) {
  auto file = import.in->next();
  if (!file) return std::unexpected(file.error());
  const auto image = import.encoder->take({.kind = ImageSource::Kind::file,
                                           .text = std::string(reinterpret_cast<const char*>(file->data()), file->size()),
                                           .media = Media::any});
  if (!image) return std::unexpected(image.error());
  const std::string name = image::file_of((*image)->id);
  const auto is_shown = import.wanted.erase((*image)->id) + import.wanted.erase(name);
  if (is_shown == 0) return refuse_file("it has an image that no message uses");
  auto use = import.encoder->keep(import.tenant, **image);
  if (!use) return std::unexpected(use.error());
  import.kept.ids.push_back(name);
  import.kept.uses.push_back(std::move(*use));
  return Unit{};
}

// Imports one image in each job, so that other jobs run in between.
void import_next(std::unique_ptr<ImageImport> import);

void post_next(std::unique_ptr<ImageImport> import) {
  WorkPool& work = import->work;
  const TenantId tenant = import->tenant;
  work.post_file(tenant, [import = std::move(import)]() mutable { import_next(std::move(import)); });
}

void import_next(std::unique_ptr<ImageImport> import) {
  const bool is_last = import->in->is_at_end();
  Expected<Unit> done;
  if (!is_last) {
    done = import_image(*import);
  } else if (import->wanted.empty()) {
    done = import->encoder->sync_kept();
  } else {
    done = refuse_file("an image of its messages is missing, or has other pixels");
  }
  if (is_last || !done) return import->done(std::move(import->kept), std::move(done));
  post_next(std::move(import));
}

}  // namespace

void import_images(WorkPool& work, const std::shared_ptr<image::ImageEncoder>& encoder, const TenantId& tenant,
                   const PortableFile& file, ImportedImages::Done done) {
  auto import = std::make_unique<ImageImport>(ImageImport{.work = work,
                                                          .encoder = encoder,
                                                          .tenant = tenant,
                                                          .file = file,
                                                          .wanted = {},
                                                          .in = std::nullopt,
                                                          .done = std::move(done)});
  PortableReader in(import->file);
  const Bytes conversation = read_conversation(in);
  auto images = ImagesReader::open(in);
  if (!images) return import->done({}, std::unexpected(images.error()));
  if (images->is_at_end()) return import->done({}, Unit{});
  if (encoder == nullptr) {
    return import->done({}, fail(ErrorCode::model_capability,
                                 "the session has images, and the model reads none: serve a model with a projector"));
  }
  const auto read = kv::decode_session_file(conversation);
  if (!read) return import->done({}, std::unexpected(read.error()));
  for (std::string& id : image_ids_of(read->record)) import->wanted.insert(std::move(id));
  import->in = std::move(*images);
  post_next(std::move(import));
}

Expected<ImportedRecord> import_record(const chat::ChatFormat& format, const PortableFile& portable, std::size_t text_bytes_max,
                                       const image::ImageEncoder* encoder, std::span<const std::string> images,
                                       std::size_t source_bytes_max) {
  const llm::Model& model = format.model();
  PortableReader in(portable);
  const Bytes bytes = read_conversation(in);
  auto file = kv::decode_session_file(bytes);
  if (!file) return std::unexpected(file.error());
  const std::unordered_set<std::string> came(images.begin(), images.end());
  const auto has_come_whole = [&](ChatMessage& message) { return normalize_message(message, came); };
  if (!std::ranges::all_of(file->record.messages, has_come_whole) ||
      !std::ranges::all_of(file->record.pending_messages, has_come_whole) ||
      !wire::normalize_context(file->record.tools, file->record.template_arguments)) {
    return fail(ErrorCode::proto_field,
                "the session file cannot be used: it has an invalid tool call, tool result, tool or image");
  }
  if (!wire::normalize_metadata(file->record.metadata)) return refuse_file("its metadata is more than a session may have");
  const std::size_t source = file->text.size() + kv::source_bytes(file->record);
  if (source > source_bytes_max) {
    return fail(ErrorCode::limit_prompt,
                std::format("the texts of the session file have {} bytes, more than the {} that fit the model's context: "
                            "serve the model with a larger one",
                            source, source_bytes_max));
  }
  const auto rest = skip_images(in);
  if (!rest) return std::unexpected(rest.error());
  const bool has_state = rest->left() > 0;
  if (file->vocabulary == vocabulary_of(model)) {
    const kv::SessionRecord& record = file->record;
    if (!are_of_vocabulary(record, model.vocab().size(), encoder != nullptr)) {
      return fail(ErrorCode::proto_field, "the session file cannot be used: a token is not in its vocabulary");
    }
    const auto runs_of = [&, ids = image_ids_of(record)](std::span<const Token> tokens) {
      return encoder != nullptr ? image::find_image_runs(tokens, ids, encoder->identity())
                                : Expected<std::vector<image::ImageRun>>();
    };
    const auto runs = runs_of(record.chain);
    if (runs && cuts_an_image(record, *runs)) {
      return fail(ErrorCode::proto_field, "the session file cannot be used: a turn begins or ends within an image");
    }
    // Images of another projector have other tokens.
    const bool are_known = runs && runs_of(record.pending);
    if (are_known && may_have_texts(model.vocab(), record)) {
      return ImportedRecord{.record = std::move(file->record), .has_state = has_state};
    }
    if (!are_known && images.empty()) return refuse_file("it has tokens of an image that is not in the file");
  }
  if (const std::size_t needed = text_bytes(*file); needed > text_bytes_max) {
    return fail(
        ErrorCode::limit_prompt,
        std::format(
            "the session file has tokens of another model, or too few for its {} bytes of text, limits.max_prompt_bytes "
            "is {}: serve the session's own model, or start umad with a larger limit",
            needed, text_bytes_max));
  }
  auto record = retokenized(format, std::move(*file));
  if (!record) return std::unexpected(record.error());
  return ImportedRecord{.record = std::move(*record), .are_tokens_kept = false, .has_state = has_state};
}

PortableFile export_state(kv::SnapshotPtr snapshot, ByteBudget::Share share) {
  struct Held {
    kv::SnapshotPtr snapshot;
    ByteBudget::Share share;
    Bytes head;
  };
  Bytes head = kv::portable_head(*snapshot);
  const auto held = std::make_shared<const Held>(std::move(snapshot), std::move(share), std::move(head));
  return {.parts = kv::state_parts(held->head, *held->snapshot), .owner = held};
}

Expected<kv::Snapshot> import_state(const llm::Model& model, const llm::ContextShape& shape, const std::string& identity,
                                    const kv::SessionRecord& record, const PortableFile& file, kv::StateStore& store) {
  PortableReader in(file);
  (void)read_conversation(in);
  auto rest = skip_images(in);
  if (!rest) return std::unexpected(rest.error());
  const std::vector<Token> chain = kv::all_tokens(record);
  auto snapshot = kv::read_state(*rest, identity, shape.knows_pieces(), chain, store.pool(),
                                 [&store](std::uint64_t bytes) { return store.make_room(bytes, kv::GiveWay::at_once); });
  if (!snapshot) return snapshot;
  for (const kv::SnapshotPiece& piece : snapshot->pieces) {
    auto checked = model.check_state(piece.bytes);
    if (checked) continue;
    kv::recycle(std::move(*snapshot), store.pool());
    return fail(ErrorCode::runtime_decode, std::format("the KV of the session file is left out: {}", checked.error().message));
  }
  return snapshot;
}

PortableFile joined(PortableFile first, PortableFile second) {
  first.parts.insert(first.parts.end(), second.parts.begin(), second.parts.end());
  first.owner = std::make_shared<const std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
      std::move(first.owner), std::move(second.owner));
  return first;
}

}  // namespace uma::engine
