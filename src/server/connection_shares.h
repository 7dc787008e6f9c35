// Prevents one peer from taking all connections: whoever it is gets only a share of them. Owned by the server's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace uma::server {

class ConnectionShares {
 public:
  // One connection of a peer's share, returned by the destructor. ConnectionShares outlives it.
  class Place {
   public:
    Place(Place&& other) noexcept : shares_(std::exchange(other.shares_, nullptr)), peer_(std::move(other.peer_)) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(shares_, other.shares_);
      std::swap(peer_, other.peer_);
      return *this;
    }
    ~Place() {
      if (shares_ != nullptr) shares_->give_back(peer_);
    }
    [[nodiscard]] bool is_of(const std::string& peer) const { return peer_ == peer; }

   private:
    friend class ConnectionShares;
    Place(ConnectionShares& shares, std::string peer) : shares_(&shares), peer_(std::move(peer)) {}

    ConnectionShares* shares_;  // Null: moved from.
    std::string peer_;
  };

  // A share is half of all connections, but at least one.
  explicit ConnectionShares(std::size_t connections_max) : share_(std::max<std::size_t>(connections_max / 2, 1)) {}

  // Returns nullopt if the peer has used up its share. `free`: the connections that are left for others then. Beyond its first
  // one, a peer has no more than these, so that several peers do not take all together.
  [[nodiscard]] std::optional<Place> take(const std::string& peer, std::size_t free = std::numeric_limits<std::size_t>::max()) {
    std::size_t& taken = taken_[peer];
    if (taken >= share_ || (taken > 0 && taken >= free)) return std::nullopt;
    ++taken;
    return Place(*this, peer);
  }

  [[nodiscard]] std::size_t peers_count() const { return taken_.size(); }

 private:
  void give_back(const std::string& peer) {
    const auto found = taken_.find(peer);
    if (--found->second == 0) taken_.erase(found);
  }

  const std::size_t share_;
  std::unordered_map<std::string, std::size_t> taken_;  // Connections per peer; a missing entry means 0.
};

}  // namespace uma::server
