// A cold store in memory for tests and the simulator. Every call can be made to fail.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kv/disk/cold_store.h"
#include "kv/disk/state_file.h"

namespace uma::testing {

class FakeColdStore final : public kv::ColdStore {
 public:
  std::vector<kv::ColdPart> parts_of(const kv::StateOwner& owner, const kv::Snapshot& snapshot) const override {
    std::vector<std::int32_t> ends;
    for (const kv::SnapshotPiece& piece : snapshot.pieces) ends.push_back(piece.end);
    std::vector<kv::ColdPart> parts;
    for (kv::StatePart& part : kv::parts_of(owner, snapshot.identity, snapshot.tokens, ends)) {
      parts.push_back({.name = std::move(part.name), .bytes = size_of(snapshot.pieces[parts.size()].bytes)});
    }
    return parts;
  }
  Expected<kv::ColdPart> write_part(const kv::StateOwner&, const kv::Snapshot& snapshot, const kv::StatePart& part) override {
    if (fails && fails()) return fault();
    const Bytes& bytes = std::ranges::find(snapshot.pieces, part.begin, &kv::SnapshotPiece::begin)->bytes;
    written += size_of(bytes);
    pieces[part.name] = bytes;
    return kv::ColdPart{.name = part.name, .bytes = size_of(bytes)};
  }
  Expected<kv::ColdHead> write(const kv::StateOwner& owner, const kv::Snapshot& snapshot) override {
    if (fails && fails()) return fault();
    std::vector<kv::ColdPart> parts = parts_of(owner, snapshot);
    kv::Snapshot rest = copy_of(snapshot);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Bytes& bytes = rest.pieces[i].bytes;
      const auto there = pieces.find(parts[i].name);
      if (bytes.empty() && there == pieces.end()) return fail(ErrorCode::runtime_decode, "no such part");
      if (!bytes.empty() && (there == pieces.end() || there->second.size() != bytes.size())) {
        written += size_of(bytes);
        pieces[parts[i].name] = bytes;
      }
      parts[i].bytes = size_of(pieces.at(parts[i].name));
      bytes.clear();
    }
    while (files.contains(std::to_string(last_name_))) ++last_name_;
    kv::ColdHead head{.name = std::to_string(last_name_),
                      .owner = owner,
                      .identity = snapshot.identity,
                      .tokens = snapshot.tokens,
                      .bytes = rest.bytes(),
                      .parts = std::move(parts),
                      .last_used_s = 0};
    written += head.bytes;
    files.insert_or_assign(head.name, File{.head = head, .snapshot = std::move(rest)});
    return head;
  }
  std::vector<std::string> lost(std::span<const kv::ColdPart> parts) const override {
    std::vector<std::string> names;
    for (const kv::ColdPart& part : parts) {
      const auto there = pieces.find(part.name);
      if (there == pieces.end() || size_of(there->second) != part.bytes) names.push_back(part.name);
    }
    return names;
  }
  std::uint64_t written_bytes() const override { return written; }
  Expected<kv::Snapshot> read(const std::string& name, const kv::StateOwner&, kv::BytePool&) override {
    if (fails && fails()) return fault();
    const auto found = files.find(name);
    if (found == files.end()) return fail(ErrorCode::runtime_decode, "no such file");
    if (found->second.is_damaged) return fail(ErrorCode::runtime_decode, "damaged");
    kv::Snapshot snapshot = copy_of(found->second.snapshot);
    for (std::size_t i = 0; i + 1 < snapshot.pieces.size(); ++i) {
      const auto piece = pieces.find(found->second.head.parts[i].name);
      if (piece == pieces.end()) return fail(ErrorCode::io_failed, "no such part");
      snapshot.pieces[i].bytes = piece->second;
    }
    return snapshot;
  }
  Expected<Unit> remove(const std::string& name) override {
    if (fails && fails()) return fault();
    files.erase(name);
    pieces.erase(name);
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
    bool is_damaged = false;
  };
  std::map<std::string, File> files;  // Without the bytes of their parts.
  std::map<std::string, Bytes> pieces;
  std::uint64_t written = 0;
  std::uint64_t part_head_bytes = 0;  // Bytes of each part, beside its piece.
  std::function<bool()> fails;

 private:
  [[nodiscard]] std::uint64_t size_of(const Bytes& piece) const { return piece.empty() ? 0 : part_head_bytes + piece.size(); }
  static kv::Snapshot copy_of(const kv::Snapshot& snapshot) {
    return {.identity = snapshot.identity, .tokens = snapshot.tokens, .room = {}, .pieces = snapshot.pieces};
  }
  static std::unexpected<Error> fault() { return fail(ErrorCode::io_failed, "a fault of the simulation"); }

  int last_name_ = 0;
};

}  // namespace uma::testing
