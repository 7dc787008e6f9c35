// Whole texts, lines and the history: what comes in.
#include "uma-cli/text_input.h"

#include <array>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "uma-cli/chat/history.h"
#include "uma-cli/chat/line_reader.h"

namespace uma::cli {
namespace {

// The reading end of a pipe that holds `bytes`; `is_open` leaves the writing end open, so that the input does not end.
class PipeWith {
 public:
  explicit PipeWith(std::string_view bytes, bool is_open = false) {
    EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC), 0);
    EXPECT_EQ(write(ends_[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    if (!is_open) close(std::exchange(ends_[1], -1));
  }
  ~PipeWith() {
    close(ends_[0]);
    if (ends_[1] >= 0) close(ends_[1]);
  }
  PipeWith(const PipeWith&) = delete;
  PipeWith& operator=(const PipeWith&) = delete;
  [[nodiscard]] int fd() const { return ends_[0]; }

 private:
  std::array<int, 2> ends_{};
};

TEST(ReadWhole, TakesEverythingButOneNewlineAtTheEnd) {
  Interrupts interrupts;
  EXPECT_EQ(read_whole(PipeWith("two\nlines\n").fd(), "standard input", false, interrupts).value(), "two\nlines");
  EXPECT_EQ(read_whole(PipeWith("a\n\n").fd(), "standard input", false, interrupts).value(), "a\n");
  EXPECT_EQ(read_whole(PipeWith("").fd(), "standard input", false, interrupts).value(), "");
}

TEST(ReadWhole, RefusesWhatTheProtocolCannotCarry) {
  Interrupts interrupts;
  EXPECT_EQ(read_whole(PipeWith("caf\xe9").fd(), "standard input", false, interrupts).error().exit_code, ExitCode::usage);
  EXPECT_EQ(read_whole(PipeWith(std::string_view("a\0b", 3)).fd(), "standard input", false, interrupts).error().exit_code,
            ExitCode::usage);
}

TEST(ReadWhole, EndsAtCtrlC) {
  Interrupts interrupts;
  const PipeWith endless("begun", true);
  raise(SIGINT);
  EXPECT_EQ(read_whole(endless.fd(), "standard input", false, interrupts).error().exit_code, ExitCode::interrupted);
}

TEST(IsPiped, IsTrueForPipesAndFilesOnly) {
  EXPECT_TRUE(is_piped(PipeWith("").fd()));
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_FALSE(is_piped(null));
  close(null);
  EXPECT_FALSE(is_piped(-1));
}

TEST(PlainLines, SplitsAtNewlinesAndKeepsALastLineWithoutOne) {
  Interrupts interrupts;
  const PipeWith input("one\n\nlast");
  auto lines = read_lines_from(input.fd(), interrupts);
  EXPECT_EQ(lines->read("> ").text, "one");
  EXPECT_EQ(lines->read("> ").text, "");
  EXPECT_EQ(lines->read("> ").text, "last");
  EXPECT_EQ(lines->read("> ").end, LineEnd::end_of_input);
}

TEST(PlainLines, EndsTheInputAtALineThatIsTooLong) {
  Interrupts interrupts;
  char name[] = "/tmp/uma_cli_line.XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  unlink(name);
  ASSERT_EQ(write(file, "one\n", 4), 4);
  ASSERT_EQ(ftruncate(file, static_cast<off_t>(kTextBytesMax + 200'000)), 0);  // A hole: zeros without a newline.
  ASSERT_EQ(lseek(file, 0, SEEK_SET), 0);
  auto lines = read_lines_from(file, interrupts);
  EXPECT_EQ(lines->read("> ").text, "one");
  EXPECT_EQ(lines->read("> ").end, LineEnd::end_of_input);
  close(file);
}

TEST(PlainLines, SaysWhichSignalEndedTheWait) {
  Interrupts interrupts;
  const PipeWith endless("", true);
  auto lines = read_lines_from(endless.fd(), interrupts);
  raise(SIGINT);
  EXPECT_EQ(lines->read("> ").end, LineEnd::interrupted);
  raise(SIGTERM);
  EXPECT_EQ(lines->read("> ").end, LineEnd::must_leave);
}

class HistoryTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_ = "/tmp/uma_cli_test.XXXXXX";
};

TEST_F(HistoryTest, KeepsLinesForTheNextRunWhereOnlyTheUserReadsThem) {
  const std::string path = folder_ + "/state/uma/history";
  append_history(path, "one");
  append_history(path, "two");
  EXPECT_EQ(load_history(path), (std::vector<std::string>{"one", "two"}));
  struct stat status{};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((folder_ + "/state").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(HistoryTest, IsEmptyWhereThereIsNoneAndWhereItCannotBeWritten) {
  EXPECT_TRUE(load_history(folder_ + "/missing").empty());
  append_history("/dev/null/uma/history", "lost");
  append_history("", "lost");
  EXPECT_TRUE(load_history("/dev/null/uma/history").empty());
}

TEST_F(HistoryTest, KeepsTheLastLinesAndShortensAFileThatGrew) {
  const std::string path = folder_ + "/history";
  {
    std::ofstream file(path);
    for (std::size_t i = 0; i < 5 * kHistoryLinesMax; ++i) file << i << '\n';
  }
  const auto lines = load_history(path);
  ASSERT_EQ(lines.size(), kHistoryLinesMax);
  EXPECT_EQ(lines.back(), std::to_string(5 * kHistoryLinesMax - 1));
  std::ifstream file(path);
  std::string first;
  ASSERT_TRUE(std::getline(file, first));
  EXPECT_EQ(first, lines.front());
}

}  // namespace
}  // namespace uma::cli
