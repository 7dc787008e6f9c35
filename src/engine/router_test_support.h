// What the tests of the router and of its sessions share.
#pragma once

#include <new>
#include <utility>
#include <vector>

#include "kv/catalog.h"

namespace uma::engine {

inline const TenantId kTenant{"test"};

// Keeps records in memory. While the disk is "full" nothing is written, while it cannot be read nothing is found.
class DiskCatalog final : public kv::Catalog {
 public:
  [[nodiscard]] std::vector<kv::SessionSummary> load() override { return kept.load(); }
  void read(const SessionId& id, OnRead on_read) override {
    if (!can_read) return on_read(fail(ErrorCode::io_short_write, "the disk cannot be read"));
    ++readings;
    kept.read(id, std::move(on_read));
  }
  void commit(kv::RecordPtr record, kv::RecordPtr before, Done done) override {
    if (throws) throw std::bad_alloc();
    if (is_full) return done(full());
    kept.commit(std::move(record), std::move(before), std::move(done));
  }
  void remove(const SessionId& id, Done done) override {
    if (throws) throw std::bad_alloc();
    if (is_full) return done(full());
    kept.remove(id, std::move(done));
  }

  kv::MemoryCatalog kept;
  bool is_full = false;
  bool throws = false;
  bool can_read = true;
  int readings = 0;

 private:
  static Expected<Unit> full() { return fail(ErrorCode::io_short_write, "the disk is full"); }
};

}  // namespace uma::engine
