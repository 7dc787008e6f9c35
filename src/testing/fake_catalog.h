// A catalog in memory whose disk can be full or unreadable, or throw.
#pragma once

#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/catalog/catalog.h"

namespace uma::testing {

class FakeCatalog final : public kv::Catalog {
 public:
  [[nodiscard]] std::vector<kv::SessionSummary> load() override { return kept.load(); }
  std::unordered_map<SessionId, std::vector<std::string>> load_image_extras() override { return kept.load_image_extras(); }
  void read(const SessionId& id, OnRead on_read) override {
    if (!can_read) return on_read(fail(ErrorCode::io_failed, "the disk cannot be read"));
    ++readings;
    kept.read(id, std::move(on_read));
  }
  void commit(kv::RecordPtr record, kv::RecordPtr before, Done done) override {
    ++commits;
    if (throws) throw std::bad_alloc();
    if (is_full) return done(full());
    if (is_unknown) return done(std::unexpected(Error{ErrorCode::outcome_unknown, "the database was lost"}));
    kept.commit(std::move(record), std::move(before), std::move(done));
  }
  void remove(const SessionId& id, Done done) override {
    if (throws) throw std::bad_alloc();
    if (is_full) return done(full());
    kept.remove(id, std::move(done));
  }

  [[nodiscard]] bool is_nearly_full() const override { return has_little_room; }

  kv::MemoryCatalog kept;
  bool is_full = false;
  bool has_little_room = false;
  bool is_unknown = false;  // Whether a commit has happened.
  bool throws = false;
  bool can_read = true;
  int readings = 0;
  int commits = 0;  // Attempted commits.

 private:
  static Expected<Unit> full() { return fail(ErrorCode::io_failed, "the disk is full"); }
};

}  // namespace uma::testing
