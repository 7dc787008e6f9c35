// A limit for the bytes that several independent owners hold together. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace uma {

class ByteBudget {
 public:
  explicit ByteBudget(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}
  [[nodiscard]] std::uint64_t bytes_max() const { return bytes_max_.load(); }
  // Sets the limit from now on. Existing shares are unaffected.
  void limit(std::uint64_t bytes_max) { bytes_max_ = bytes_max; }
  [[nodiscard]] std::uint64_t bytes_used() const { return used_.load(); }

  // Bytes of one owner, returned by the destructor. A share keeps the budget alive.
  class Share {
   public:
    Share() = default;  // Belongs to no budget.
    explicit Share(std::shared_ptr<ByteBudget> budget) : budget_(std::move(budget)) {}
    Share(Share&& other) noexcept : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      Share(std::move(other)).swap(*this);
      return *this;
    }
    ~Share() {
      if (budget_) budget_->used_.fetch_sub(bytes_);
    }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    // Adds bytes; returns false, and changes nothing, if they exceed the limit. Requires a budget.
    [[nodiscard]] bool grow(std::uint64_t bytes) {
      std::uint64_t used = budget_->used_.load();
      const std::uint64_t bytes_max = budget_->bytes_max();
      do {
        if (bytes > bytes_max || used > bytes_max - bytes) return false;
      } while (!budget_->used_.compare_exchange_weak(used, used + bytes));
      // A thread that lowers the limit and then reads the use sees this share, or this thread sees the new limit.
      if (used + bytes > budget_->bytes_max()) {
        budget_->used_.fetch_sub(bytes);
        return false;
      }
      bytes_ += bytes;
      return true;
    }
    // Sets the bytes really held, even beyond the limit, because they are in use already. Does nothing without a budget.
    void correct(std::uint64_t bytes) {
      if (!budget_) return;
      budget_->used_.fetch_add(bytes - bytes_);
      bytes_ = bytes;
    }
    void swap(Share& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
    }

   private:
    std::shared_ptr<ByteBudget> budget_;
    std::uint64_t bytes_ = 0;
  };

 private:
  std::atomic<std::uint64_t> bytes_max_;
  std::atomic<std::uint64_t> used_{0};
};

}  // namespace uma
