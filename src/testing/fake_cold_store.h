// A cold store in memory for tests and the simulator. Every call can be made to fail.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kv/cold_store.h"

namespace uma::testing {

class FakeColdStore final : public kv::ColdStore {
 public:
  Expected<kv::ColdHead> write(const kv::StateOwner& owner, const kv::Snapshot& snapshot) override {
    if (fails && fails()) return fault();
    while (files.contains(std::to_string(last_name_))) ++last_name_;
    kv::ColdHead head{.name = std::to_string(last_name_),
                      .owner = owner,
                      .identity = snapshot.identity,
                      .tokens = snapshot.tokens,
                      .bytes = snapshot.bytes(),
                      .last_used_s = 0};
    files.insert_or_assign(head.name, File{.head = head, .snapshot = copy_of(snapshot)});
    return head;
  }
  Expected<kv::Snapshot> read(const std::string& name, const kv::StateOwner&, kv::BytePool&) override {
    if (fails && fails()) return fault();
    const auto found = files.find(name);
    if (found == files.end()) return fail(ErrorCode::runtime_decode, "no such file");
    return copy_of(found->second.snapshot);
  }
  Expected<Unit> remove(const std::string& name) override {
    if (fails && fails()) return fault();
    files.erase(name);
    return Unit{};
  }
  void touch(const std::string&) override {}
  Expected<std::vector<kv::ColdHead>> list() override {
    std::vector<kv::ColdHead> heads;
    for (const auto& [name, file] : files) heads.push_back(file.head);
    return heads;
  }

  struct File {
    kv::ColdHead head;
    kv::Snapshot snapshot;
  };
  std::map<std::string, File> files;
  std::function<bool()> fails;

 private:
  static kv::Snapshot copy_of(const kv::Snapshot& snapshot) {
    return {.identity = snapshot.identity, .tokens = snapshot.tokens, .room = {}, .pieces = snapshot.pieces};
  }
  static std::unexpected<Error> fault() { return fail(ErrorCode::io_failed, "a fault of the simulation"); }

  int last_name_ = 0;
};

}  // namespace uma::testing
