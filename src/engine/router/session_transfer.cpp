#include "engine/router/session_transfer.h"

#include <format>
#include <optional>
#include <utility>

#include "base/log.h"
#include "engine/lane/lane.h"
#include "engine/session/record_edits.h"
#include "image/image_encoder.h"

namespace uma::engine {

// --- Export

Task<Expected<ExportedSession>> SessionTransfer::export_session(TenantId tenant, std::string session, bool with_kv) {
  // The tokens and their text need the session's model.
  auto lease = co_await parts_.access.lease_model(tenant, session);
  if (!lease) co_return lease.error();
  auto lock = co_await parts_.sessions.lock(tenant, session);
  if (!lock) co_return lock.error();
  const kv::RecordPtr record = (*lock)->record;
  if (auto known = check_model(**lease, *record); !known) co_return known.error();
  ExportedSession made{.info = parts_.access.info_of(**lock), .file = {}};
  Lane& lane = *(*lease)->lanes[(*lock)->lane];
  lock->release();
  if (with_kv) {
    // KV in a slot is stored first, as in an eviction.
    if (lane.holds(record->id)) {
      (void)co_await parts_.tasks.ask<Unit>([&](Promise<Unit> reply) {
        lane.post(CopyCommand{record->id, kv::GiveWay::at_once, [reply = std::move(reply)]() mutable { reply(Unit{}); }});
      });
    }
    auto kv = co_await export_kv(*lease, *record);
    if (!kv) co_return kv.error();
    made.file = std::move(*kv);
    made.kv_bytes = made.file.size();
  }
  auto conversation = co_await export_conversation(*lease, record);
  if (!conversation) co_return conversation.error();
  made.file = joined(std::move(*conversation), std::move(made.file));
  co_return made;
}

// The session's stored state, if it holds a beginning of the session's tokens; else an empty file.
Task<Expected<PortableFile>> SessionTransfer::export_kv(const ModelLease& lease, const kv::SessionRecord& record) {
  const std::vector<Token> chain = kv::all_tokens(record);
  const kv::PrefixQuery query{.family = lease->lanes.front()->family(),
                              .tenant = record.tenant,
                              .session = record.id,
                              .forked_from = {},
                              .takes_others = false};
  const auto match = parts_.store.find(query, chain);
  if (!match || match->tokens_count < match->tokens_stored) co_return PortableFile{};
  ByteBudget::Share share(exports_);
  if (match->bytes > exports_->bytes_max()) {
    co_return Error{
        ErrorCode::limit_prompt,
        std::format("the KV of the session has {} bytes, limits.transfer_bytes_max is {}: export the session without KV",
                    match->bytes, exports_->bytes_max())};
  }
  if (!share.grow(match->bytes)) {
    co_return Error{ErrorCode::limit_wait,
                    std::format("exports in progress hold {} of {} bytes (limits.transfer_bytes_max): try again later",
                                exports_->bytes_used(), exports_->bytes_max())};
  }
  // The store's thread makes the file, so that its checksum delays no other thread.
  co_return co_await parts_.tasks.ask<PortableFile>([&](Promise<PortableFile> reply) {
    parts_.store.fetch(match->id,
                       [share = std::move(share), reply = std::move(reply)](const Expected<kv::SnapshotPtr>& snapshot) mutable {
                         PortableFile file;
                         if (snapshot) file = export_state(*snapshot, std::move(share));
                         reply(std::move(file));
                       });
  });
}

// The conversation and the images of its messages.
Task<Expected<PortableFile>> SessionTransfer::export_conversation(const ModelLease& lease, kv::RecordPtr record) {
  auto conversation = co_await parts_.work.run(
      parts_.tasks, record->tenant, kv::stored_bytes(*record),
      [lease = lease.share(), record] -> Expected<Bytes> { return export_record(*lease->model, *record); });
  if (!conversation) co_return conversation.error();
  PortableFile images;
  if (const std::shared_ptr<image::ImageEncoder> encoder = lease->image_encoder) {
    auto kept = co_await parts_.work.run_file(parts_.tasks, record->tenant, [encoder, record, exports = exports_] {
      return export_images(*encoder, *record, exports);
    });
    if (!kept) co_return kept.error();
    images = std::move(*kept);
  }
  if (conversation->size() > kConversationBytesMax) {
    co_return Error{ErrorCode::limit_prompt, std::format("as a file the session has {} bytes, the limit is {}: rewind it first",
                                                         conversation->size(), kConversationBytesMax)};
  }
  co_return joined(file_of(std::move(*conversation)), std::move(images));
}

// --- Import

Task<Expected<ImportedSession>> SessionTransfer::import_session(TenantId tenant, ImportRequest request) {
  auto lease = co_await parts_.models.lease_chat(request.model);
  if (!lease) co_return lease.error();
  const ServedModel& served = **lease;
  std::vector<std::string> ids;
  // Held until the session uses the images, or the import fails.
  const auto images = co_await keep_images(*lease, tenant, request.file, ids);
  if (!images) co_return images.error();
  auto imported = co_await parts_.work.run(
      parts_.tasks, tenant, request.file.size(),
      [lease = lease->share(), file = request.file, ids, bytes_max = parts_.limits.max_prompt_bytes] {
        return import_record(*lease->chat, file, bytes_max, lease->image_encoder.get(), ids, source_bytes_max(*lease));
      });
  if (!imported) co_return imported.error();
  kv::SessionRecord& record = imported->record;
  std::optional<Expected<kv::Snapshot>> state;
  if (imported->has_state) {
    state = co_await import_kv(*lease, request, record);
    if (!*state && state->error().code == ErrorCode::proto_field) co_return state->error();
  }
  request.file = {};  // Its memory is free before the reply, for the next import.
  if (auto fits = check_fits(served, record.chain.size(), record.pending.size()); !fits) co_return fits.error();
  if (record.n_keep >= served.shape().sequence_cells_max) {
    co_return Error{ErrorCode::limit_context,
                    std::format("the session keeps {} tokens when its context is full, the context is {}", record.n_keep,
                                served.shape().sequence_cells_max)};
  }
  record.id = parts_.sessions.new_id();
  record.tenant = tenant;
  if (!request.name.empty()) record.name = request.name;
  record.model = served.name;
  record.last_used_s = parts_.clock.unix_s();
  record.has_foreign_kv = state && *state;
  auto added = co_await commands_.add(std::move(record), parts_.access.least_loaded_lane(served));
  if (!added) co_return added.error();
  ImportedSession made{.info = std::move(*added), .are_tokens_kept = imported->are_tokens_kept};
  if (state) {
    made.kv = keep_kv(made.info.id, std::move(*state));
    if (const Session* session = parts_.sessions.find(made.info.id)) {
      std::string metadata = std::move(made.info.metadata);  // Whole, as the record may not be in memory any more.
      made.info = parts_.access.info_of(*session);
      made.info.metadata = std::move(metadata);
    }
  }
  co_return made;
}

// Keeps the images of the file and writes their ids to `ids`.
Task<Expected<ImageHold>> SessionTransfer::keep_images(const ModelLease& lease, TenantId tenant, PortableFile file,
                                                       std::vector<std::string>& ids) {
  struct Kept {
    ImportedImages images;
    Expected<Unit> outcome;
  };
  auto kept = co_await parts_.tasks.ask<Kept>([&](Promise<Kept> reply) {
    const std::size_t bytes = file.size();
    WorkPool& work = parts_.work;
    work.post(tenant, bytes, [&work, encoder = lease->image_encoder, tenant, file, reply = std::move(reply)]() mutable {
      import_images(work, encoder, tenant, file,
                    [reply = std::move(reply)](ImportedImages images, Expected<Unit> outcome) mutable {
                      reply(Kept{.images = std::move(images), .outcome = std::move(outcome)});
                    });
    });
  });
  if (!kept) co_return kept.error();
  ids = kept->images.ids;
  ImageHold hold = parts_.images.hold(std::move(kept->images.ids), std::move(kept->images.uses));
  if (!kept->outcome) co_return kept->outcome.error();
  co_return std::move(hold);
}

// Reads the KV of the file on the store's thread. Errors: E_PROTO_003 for a broken file; others if the KV is not accepted.
Task<Expected<kv::Snapshot>> SessionTransfer::import_kv(const ModelLease& lease, const ImportRequest& request,
                                                        const kv::SessionRecord& record) {
  const auto refused = [](std::string_view reason) {
    return Error{ErrorCode::runtime_decode, std::format("the KV of the session file is left out: {}", reason)};
  };
  if (!request.takes_kv) co_return refused("KV is not accepted over HTTP");
  if (!lease->shape().checks_states) co_return refused("KV of this kind of model cannot be checked");
  co_return co_await parts_.tasks.ask<kv::Snapshot>([&](Promise<kv::Snapshot> reply) {
    parts_.store.run_later(
        [lease = lease.share(), &store = parts_.store, record, file = request.file, reply = std::move(reply)]() mutable {
          reply(contain([&] {
            return import_state(*lease->model, lease->shape(), lease->lanes.front()->state_identity(), record, file, store);
          }));
        });
  });
}

// Stores the state of an imported session for that session alone, because its numbers cannot be trusted.
ImportedKv SessionTransfer::keep_kv(const SessionId& id, Expected<kv::Snapshot> snapshot) {
  const Session* session = parts_.sessions.find(id);
  if (!snapshot || session == nullptr) {
    log_info("session {}: {}", id.value,
             snapshot ? "the imported KV is left out: the session has ended" : snapshot.error().message);
    return ImportedKv::refused;
  }
  parts_.store.put({.tenant = session->summary.tenant, .session = id, .is_public = false, .is_private = true},
                   std::move(*snapshot));
  if (parts_.store.states_of(id).tier != Tier::none) return ImportedKv::kept;
  log_info("session {}: the imported KV is left out: there is no free memory for it", id.value);
  return ImportedKv::refused;
}

}  // namespace uma::engine
