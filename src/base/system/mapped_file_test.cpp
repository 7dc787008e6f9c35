#include "base/system/mapped_file.h"

#include <cstddef>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/system/unique_fd.h"

namespace uma {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 16;

class MappedFile : public ::testing::Test {
 protected:
  MappedFile() {
    std::ofstream(path_) << std::string(kPages * kPage, 'x');
    const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    place_ = static_cast<const char*>(::mmap(nullptr, kPages * kPage, PROT_READ, MAP_SHARED, file.get(), 0));
  }
  ~MappedFile() override {
    ::munmap(const_cast<char*>(place_), kPages * kPage);
    std::filesystem::remove(path_);
  }

  [[nodiscard]] int sum() const {
    int sum = 0;
    for (std::size_t i = 0; i < kPages; ++i) sum += place_[i * kPage] == 'x' ? 1 : 0;
    return sum;
  }
  // Resident KiB of the mapping.
  [[nodiscard]] long resident_kib() const {
    std::ifstream maps("/proc/self/smaps");
    bool is_inside = false;
    for (std::string line; std::getline(maps, line);) {
      if (line.contains('/')) is_inside = line.ends_with(path_.filename().string());
      if (is_inside && line.starts_with("Rss:")) return std::stol(line.substr(4));
    }
    return -1;
  }

  const std::filesystem::path path_ =
      std::filesystem::path(::testing::TempDir()) / ("uma mapped " + std::to_string(::getpid()));
  const char* place_ = nullptr;
};

TEST_F(MappedFile, ItsPagesAreReleasedAndCanBeReadAgain) {
  EXPECT_EQ(sum(), static_cast<int>(kPages));
  EXPECT_GT(resident_kib(), 0);
  release_mapped_pages(path_);
  EXPECT_EQ(resident_kib(), 0);
  EXPECT_EQ(sum(), static_cast<int>(kPages));
}

TEST_F(MappedFile, OtherFilesAndMissingOnesChangeNothing) {
  EXPECT_EQ(sum(), static_cast<int>(kPages));
  const long before = resident_kib();
  static int written = 1;  // In a private mapping of this program's file.
  written = 2;
  release_mapped_pages("/proc/self/exe");
  EXPECT_EQ(written, 2);
  release_mapped_pages(path_.string() + " missing");
  EXPECT_EQ(resident_kib(), before);
}

}  // namespace
}  // namespace uma
