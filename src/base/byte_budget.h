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
  [[nodiscard]] std::uint64_t bytes_max() const { return bytes_max_.load(); }
  // From now on. Who has more keeps it.
  void limit(std::uint64_t bytes_max) { bytes_max_ = bytes_max; }
  [[nodiscard]] std::uint64_t bytes_used() const { return used_.load(); }

  // What one owner holds; given back when it dies. The budget is shared: a share may be the last who knows it.
  class Share {
   public:
    Share() = default;  // of no budget
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
    // False, and nothing changed: the others leave less. REQUIRES: a budget.
    [[nodiscard]] bool grow(std::uint64_t bytes) {
      std::uint64_t used = budget_->used_.load();
      const std::uint64_t bytes_max = budget_->bytes_max();
      do {
        if (bytes > bytes_max || used > bytes_max - bytes) return false;
      } while (!budget_->used_.compare_exchange_weak(used, used + bytes));
      // Whoever lowers the limit and then looks at what is used sees this share, or this sees the limit.
      if (used + bytes > budget_->bytes_max()) {
        budget_->used_.fetch_sub(bytes);
        return false;
      }
      bytes_ += bytes;
      return true;
    }
    // What its owner really holds: more than the others leave, too, for it is held already. Nothing without a budget.
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
