// The threads of ggml's CPU backend. The backend is compiled with OpenMP and calls five functions of its runtime. They are
// defined here, in front of libgomp's (docs/decisions/0012), because libgomp lets waiting threads sleep after 100 turns as soon
// as all teams together have more threads than cores, and two lanes have two teams. Measured: a decode call on two threads took
// 6 ms, and 16 ms after another thread had computed on two threads (docs/BENCHMARKS.md, "Two teams").
// A team belongs to the thread that calls GOMP_parallel and has the same lifetime. Waiting threads spin for kSpin, then sleep,
// so an idle daemon uses no CPU. Other parallel regions (libggml-base quantizes with OpenMP's loops) are passed to libgomp.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/system/thread_name.h"

namespace uma::llm {
namespace {

// Longer than the gap between two steps of a graph, shorter than a tick.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr int kTurnsPerLook = 64;  // Turns between two readings of the clock.

void spin_once() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t old) {
  const auto give_up = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int turn = 0; turn < kTurnsPerLook; ++turn) {
      if (word.load(std::memory_order_acquire) != old) return;
      spin_once();
    }
  } while (std::chrono::steady_clock::now() < give_up);
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

using Region = void (*)(void*);

class Team;

// The role of a thread in its team.
struct Member {
  Team* team = nullptr;
  std::uint32_t number = 0;
  std::uint32_t singles_passed = 0;
};
thread_local Member member;

class Team {
 public:
  static constexpr std::uint32_t kSizeBits = 10;
  static constexpr std::uint32_t kSizeMax = (1u << kSizeBits) - 1;

  Team() = default;
  Team(const Team&) = delete;
  ~Team() {
    announce(kOver);
    for (std::thread& thread : threads_) thread.join();
  }

  // Runs region(data) on `size` threads, including the caller, and returns when all threads have finished. Requires: 2 <= size
  // <= kSizeMax.
  void run(Region region, void* data, std::uint32_t size) {
    while (threads_.size() + 1 < size) {
      const auto number = static_cast<std::uint32_t>(threads_.size() + 1);
      const std::uint32_t seen = regions_.load(std::memory_order_relaxed);
      threads_.emplace_back([this, number, seen] { serve(number, seen); });
    }
    region_ = region;
    data_ = data;
    size_ = size;
    singles_taken_.store(0, std::memory_order_relaxed);
    announce(size);
    member = {.team = this, .number = 0, .singles_passed = 0};
    region(data);
    barrier();
    member = {};
  }

  void barrier() {
    // Read before arriving, because the last arrival lets the next region begin, perhaps with another size.
    const std::uint32_t round = rounds_.load(std::memory_order_acquire);
    const std::uint32_t size = size_;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size) return wait_for_change(rounds_, round);
    arrived_.store(0, std::memory_order_relaxed);
    rounds_.store(round + 1, std::memory_order_release);
    rounds_.notify_all();
  }

  // True for the first member at its n-th single section.
  bool take_single(std::uint32_t number) { return singles_taken_.compare_exchange_strong(number, number + 1); }
  [[nodiscard]] std::uint32_t size() const { return size_; }

 private:
  static constexpr std::uint32_t kOver = 0;

  void announce(std::uint32_t size) {
    regions_.store(((regions_.load(std::memory_order_relaxed) >> kSizeBits) + 1) << kSizeBits | size,
                   std::memory_order_release);
    regions_.notify_all();
  }

  void serve(std::uint32_t number, std::uint32_t seen) {
    set_thread_name("uma-compute");
    for (;;) {
      wait_for_change(regions_, seen);
      seen = regions_.load(std::memory_order_acquire);
      const std::uint32_t size = seen & kSizeMax;
      if (size == kOver) return;
      if (number >= size) continue;
      // The region cannot end without this thread, so the announced values stay valid.
      member = {.team = this, .number = number, .singles_passed = 0};
      region_(data_);
      barrier();
    }
  }

  // Written between regions only, while no other thread of the team runs.
  std::vector<std::thread> threads_;
  Region region_ = nullptr;
  void* data_ = nullptr;
  std::uint32_t size_ = 1;

  std::atomic<std::uint32_t> regions_{0};              // The number of started regions, and the size of the latest one.
  alignas(64) std::atomic<std::uint32_t> arrived_{0};  // Threads at the barrier.
  alignas(64) std::atomic<std::uint32_t> rounds_{0};   // Completed rounds of the barrier.
  alignas(64) std::atomic<std::uint32_t> singles_taken_{0};
};

// Whether the region is code of ggml's CPU backend. Asked once per graph; the last answer is cached.
bool is_of_backend(Region region) {
  thread_local std::pair<Region, bool> last{nullptr, false};
  if (last.first != region) {
    Dl_info info{};
    const bool known = ::dladdr(reinterpret_cast<void*>(region), &info) != 0 && info.dli_fname != nullptr;
    last = {region, known && std::strstr(info.dli_fname, "libggml-base") == nullptr};
  }
  return last.second;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace uma::llm

// NOLINTBEGIN(readability-identifier-naming): the names are the runtime's.
extern "C" {

[[gnu::visibility("default")]] void GOMP_parallel(void (*region)(void*), void* data, unsigned size, unsigned flags) {
  using namespace uma::llm;
  static const auto libgomp = next<void (*)(Region, void*, unsigned, unsigned)>("GOMP_parallel");
  if (libgomp != nullptr && !is_of_backend(region)) return libgomp(region, data, size, flags);
  if (member.team != nullptr || size <= 1) {  // A nested region has one thread, which is OpenMP's default.
    const Member outer = std::exchange(member, {});
    region(data);
    member = outer;
    return;
  }
  thread_local const auto team = std::make_unique<Team>();
  team->run(region, data, std::min(size, Team::kSizeMax));
}

[[gnu::visibility("default")]] void GOMP_barrier() {
  static const auto libgomp = uma::llm::next<void (*)()>("GOMP_barrier");
  if (uma::llm::member.team != nullptr) return uma::llm::member.team->barrier();
  if (libgomp != nullptr) libgomp();
}

[[gnu::visibility("default")]] bool GOMP_single_start() {
  static const auto libgomp = uma::llm::next<bool (*)()>("GOMP_single_start");
  uma::llm::Member& self = uma::llm::member;
  if (self.team != nullptr) return self.team->take_single(self.singles_passed++);
  return libgomp == nullptr || libgomp();
}

[[gnu::visibility("default")]] int omp_get_thread_num() {
  static const auto libgomp = uma::llm::next<int (*)()>("omp_get_thread_num");
  if (uma::llm::member.team != nullptr) return static_cast<int>(uma::llm::member.number);
  return libgomp == nullptr ? 0 : libgomp();
}

[[gnu::visibility("default")]] int omp_get_num_threads() {
  static const auto libgomp = uma::llm::next<int (*)()>("omp_get_num_threads");
  if (uma::llm::member.team != nullptr) return static_cast<int>(uma::llm::member.team->size());
  return libgomp == nullptr ? 1 : libgomp();
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
