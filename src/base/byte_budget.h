// A bound on the bytes that several owners hold together, none of whom knows the others. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace uma {

class ByteBudget {
 public:
  explicit ByteBudget(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}
  [[nodiscard]] std::uint64_t bytes_max() const { return bytes_max_; }
  [[nodiscard]] std::uint64_t bytes_used() const { return used_.load(); }

  // What one owner holds; given back when it dies. The budget is shared: a share may be the last who knows it.
  class Share {
   public:
    explicit Share(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}
    Share(Share&& other) noexcept : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    Share& operator=(Share&&) = delete;
    ~Share() {
      if (budget_) budget_->used_.fetch_sub(bytes_);
    }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    // False, and nothing changed: the others leave less.
    [[nodiscard]] bool grow(std::uint64_t bytes) {
      std::uint64_t used = budget_->used_.load();
      do {
        if (bytes > budget_->bytes_max_ || used > budget_->bytes_max_ - bytes) return false;
      } while (!budget_->used_.compare_exchange_weak(used, used + bytes));
      bytes_ += bytes;
      return true;
    }

   private:
    std::shared_ptr<ByteBudget> budget_;
    std::uint64_t bytes_ = 0;
  };

 private:
  const std::uint64_t bytes_max_;
  std::atomic<std::uint64_t> used_{0};
};

}  // namespace uma
