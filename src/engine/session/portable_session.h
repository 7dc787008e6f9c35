// Converts sessions to files and back (docs/SESSION_FILE.md). Pure; any thread. A record takes as long as tokenizing all of it,
// so the work pool converts records; the store's thread converts states, which are large.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/move_only_function.h"
#include "chat/chat.h"
#include "core/error.h"
#include "core/file/portable_file.h"
#include "image/image_encoder.h"
#include "kv/catalog/catalog.h"
#include "kv/checksum.h"
#include "kv/snapshot.h"
#include "kv/state_store.h"
#include "llm/model.h"

namespace uma::engine {

// A checksum of everything that decides the tokens of a conversation: the vocabulary, its special tokens and the chat template.
// It is equal for models of one family in any quantization. O(vocabulary).
[[nodiscard]] kv::Checksum vocabulary_of(const llm::Model& model);

// Requires: the record's tokens belong to this model.
[[nodiscard]] Bytes export_record(const llm::Model& model, const kv::SessionRecord& record);

// The images of the record's messages, in the format in which they follow the record in a file; empty: there are none. The file
// holds a share of `budget` until its bytes are read. Blocks on the disk. Errors: E_IO_001 for a missing image; E_LIMIT_001 and
// E_LIMIT_003 if the images exceed `budget`.
[[nodiscard]] Expected<PortableFile> export_images(const image::ImageEncoder& encoder, const kv::SessionRecord& record,
                                                   const std::shared_ptr<ByteBudget>& budget);
struct ImportedImages {
  std::vector<std::string> ids;
  std::vector<image::KeptImages::Use> uses;

  using Done = MoveOnlyFunction<void(ImportedImages images, Expected<Unit> outcome)>;
};
// Keeps the images of a file, each in a job of `work`. `encoder` is null if the model reads no images. `done` is called once,
// here or in a job, with the images that were kept. Reads the record. Errors: E_MODEL_003; E_PROTO_003 for bytes that are not
// an image, or an image that no message uses; those of KeptImages::keep().
void import_images(WorkPool& work, const std::shared_ptr<image::ImageEncoder>& encoder, const TenantId& tenant,
                   const PortableFile& file, ImportedImages::Done done);

struct ImportedRecord {
  kv::SessionRecord record;     // Without id and tenant, which the caller sets.
  bool are_tokens_kept = true;  // False: the tokens were not of this model or of this text, which was tokenized again.
  bool has_state = false;       // KV follows the record; import_state() reads it.
};
// `images` are the ids of the file's images, which `encoder` keeps. If the tokens are from another vocabulary, or an image from
// another projector, the text is tokenized again: the finished turns of a chat become one turn, and a text becomes pending
// input. That text has at most `text_bytes_max` bytes. So it is with tokens that are too few for the text. Texts of more than
// `source_bytes_max` bytes fit no context. Errors: E_PROTO_003 for bytes that are not a session file; E_LIMIT_001 for too
// much text; those of the tokenizer and the template.
[[nodiscard]] Expected<ImportedRecord> import_record(const chat::ChatFormat& format, const PortableFile& file,
                                                     std::size_t text_bytes_max, const image::ImageEncoder* encoder = nullptr,
                                                     std::span<const std::string> images = {},
                                                     std::size_t source_bytes_max = SIZE_MAX);

// The part of a file that has the KV. It holds the snapshot, and `share` until its bytes are read.
[[nodiscard]] PortableFile export_state(kv::SnapshotPtr snapshot, ByteBudget::Share share);
// Reads the KV of a file for contexts of this `shape` and `identity`, into the store's memory, from which less valuable states
// are evicted at once. Requires: `record` was imported from `file`, which has a state. Errors: those of kv::read_state();
// E_RUNTIME_001 for a number that is not finite.
[[nodiscard]] Expected<kv::Snapshot> import_state(const llm::Model& model, const llm::ContextShape& shape,
                                                  const std::string& identity, const kv::SessionRecord& record,
                                                  const PortableFile& file, kv::StateStore& store);
// Concatenates two files.
[[nodiscard]] PortableFile joined(PortableFile first, PortableFile second);

// The text of the chain, as clients see it.
[[nodiscard]] std::string text_of(const llm::Vocab& vocab, std::span<const Token> chain);

}  // namespace uma::engine
