// A session as a file for another place, and back (docs/SESSION_FILE.md). Pure; any thread. A record takes as long as
// tokenizing all of it, so it is a job for the preparer; a state is one for the store's thread, which is used to so many bytes.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "capability/chat.h"
#include "core/error.h"
#include "core/portable_file.h"
#include "engine/vision.h"
#include "kv/catalog.h"
#include "kv/checksum.h"
#include "kv/state_image.h"
#include "kv/state_store.h"
#include "llm/model.h"

namespace uma::engine {

// Of all that decides which tokens a conversation has: the vocabulary, its special tokens and the chat template. Equal for
// models of one family in any quantization. O(vocabulary).
[[nodiscard]] kv::Checksum vocabulary_of(const llm::Model& model);

// REQUIRES: the record's tokens are of this model.
[[nodiscard]] Bytes export_record(const llm::Model& model, const kv::SessionRecord& record);

// The images that its messages have, as they follow the record, and the share of who waits for their bytes; empty: there are
// none. Blocks on the disk. Errors: E_IO_001 for one that is gone; E_LIMIT_001 and E_LIMIT_003 for more than `budget` has.
[[nodiscard]] Expected<PortableFile> export_images(Vision& vision, const kv::SessionRecord& record,
                                                   const std::shared_ptr<ByteBudget>& budget);
struct ImportedImages {
  std::vector<std::string> ids;
  std::vector<KeptImages::Use> uses;

  using Done = std::move_only_function<void(ImportedImages images, Expected<Unit> outcome)>;
};
// Keeps those that follow the record in a file, each as a job of `vision`, null where the model reads none. `done` is called
// once, here or by a job, with those that were kept. Reads the record. Errors: E_MODEL_003; E_PROTO_003 for what is no image,
// or one that no message shows; KeptImages::keep().
void import_images(const std::shared_ptr<Vision>& vision, const TenantId& tenant, const PortableFile& file,
                   ImportedImages::Done done);

struct ImportedRecord {
  kv::SessionRecord record;     // without id and tenant
  bool are_tokens_kept = true;  // false: they were of another vocabulary and have been made anew
  bool has_state = false;       // KV follows, which import_state() reads
};
// `images` are the ids of those that came with it, which `vision` keeps. Tokens of another vocabulary, or of an image that
// another projector has read, are made anew from what was said: of a chat all finished turns become one; a text waits as
// pending input. That text has at most `text_bytes_max`.
// Errors: E_PROTO_003 for bytes that are no such file; E_LIMIT_001 for too much text; those of the tokenizer and the template.
[[nodiscard]] Expected<ImportedRecord> import_record(const capability::ChatFormat& format, const PortableFile& file,
                                                     std::size_t text_bytes_max, const Vision* vision = nullptr,
                                                     std::span<const std::string> images = {});

// What follows the record where KV travels too. The file holds the image and the share of who waits for its bytes.
[[nodiscard]] PortableFile export_state(kv::ImagePtr image, ByteBudget::Share share);
// For contexts of `shape` and `identity` of the model, into memory of the store's, where less valuable states give way at once.
// REQUIRES: `record` came out of `file`, which has a state. Errors: those of kv::read_state(); E_RUNTIME_001 for a number in it
// that is not finite.
[[nodiscard]] Expected<kv::StateImage> import_state(const llm::Model& model, const llm::ContextShape& shape,
                                                    const std::string& identity, const kv::SessionRecord& record,
                                                    const PortableFile& file, kv::StateStore& store);
// One file of two.
[[nodiscard]] PortableFile joined(PortableFile first, PortableFile second);

// The chain as text, as a client sees it.
[[nodiscard]] std::string text_of(const llm::Vocab& vocab, std::span<const Token> chain);

}  // namespace uma::engine
