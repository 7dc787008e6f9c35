#include "umad/process/media_process.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <future>
#include <stop_token>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/system/sanitizer.h"
#include "umad/process/confine.h"

namespace uma::umad {
namespace {

namespace fs = std::filesystem;

// Scripts stand for umad, whose own processes decode the files of tests/e2e.
class MediaProcess : public testing::Test {
 protected:
  MediaProcess() { std::signal(SIGPIPE, SIG_IGN); }  // umad's rule (signals.h): a process may end before it has read its file.
  ~MediaProcess() override { fs::remove(program_); }
  void write_program(const std::string& script) {
    std::ofstream(program_, std::ios::trunc) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(program_, fs::perms::owner_all);
  }
  [[nodiscard]] Expected<llm::Picture> decode() {
    return processes_.decode_picture(std::as_bytes(std::span(file_)), image::Turns::yes);
  }
  [[nodiscard]] Expected<llm::Picture> decode(const std::string& script) {
    write_program(script);
    return decode();
  }

  const std::string program_ = fs::path(testing::TempDir()) / ("uma-media-" + std::to_string(::getpid()) + ".sh");
  const std::string file_ = "a file";
  MediaProcesses processes_{program_};
};

// An answer of one pixel, or of a text; then the process waits for the next file.
constexpr const char* kOnePixel =
    R"(printf '\1\0\0\0\1\0\0\0\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0abc'; printf x >&2; exec cat >/dev/null)";

TEST_F(MediaProcess, AnswersWithPixelsOrWords) {
  const auto picture = decode(kOnePixel);
  ASSERT_TRUE(picture) << picture.error().message;
  EXPECT_EQ(picture->width, 1);
  EXPECT_EQ(picture->levels, (std::vector<std::uint8_t>{'a', 'b', 'c'}));
}

TEST_F(MediaProcess, SaysWhyAFileIsRefused) {
  const auto refused = decode(R"(printf '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0torn'; exec cat >/dev/null)");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::proto_field);
  EXPECT_EQ(refused.error().message, "torn");
}

TEST_F(MediaProcess, ACrashIsAnErrorOfTheFile) {
  for (const std::string script : {"exit 0", "kill -SEGV $$", "echo something else that is long enough",
                                   R"(printf '\1\0\0\0\1\0\0\0\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0a')",
                                   R"(printf '\1\0\0\0\377\377\0\0\377\377\0\0\0\0\0\0\3\0\0\0\0\0\0\0abc')",
                                   R"(printf '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0')"}) {
    const auto refused = decode(script);
    ASSERT_FALSE(refused) << script;
    EXPECT_EQ(refused.error().code, ErrorCode::proto_field) << script;
  }
  EXPECT_TRUE(decode(kOnePixel)) << "with a new process";
}

TEST_F(MediaProcess, AClipHasTheSamplesThatCameAndNumbersOnly) {
  // 0.5, infinity.
  write_program(R"(printf '\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\10\0\0\0\0\0\0\0\0\0\0\77\0\0\200\177'; exec cat >/dev/null)");
  const auto clip = processes_.decode_sound(std::as_bytes(std::span(file_)), 16'000);
  ASSERT_TRUE(clip) << clip.error().message;
  EXPECT_EQ(*clip, (llm::Clip{.sample_rate = 16'000, .samples = {0.5, 0}}));
  // More than the longest clip has.
  write_program(R"(printf '\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0'; exec cat >/dev/null)");
  MediaProcesses others{program_};
  EXPECT_EQ(others.decode_sound(std::as_bytes(std::span(file_)), 16'000).error().code, ErrorCode::proto_field);
}

TEST_F(MediaProcess, OneThatIsGivenUpEndsAtOnce) {
  const fs::path id = program_ + ".id";
  write_program("echo $$ > $0.id; sleep 600");
  std::stop_source end;
  auto decoding = std::async(std::launch::async, [&] {
    return processes_.decode_picture(std::as_bytes(std::span(file_)), image::Turns::yes, end.get_token());
  });
  pid_t pid = 0;
  while (!(std::ifstream(id) >> pid)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  end.request_stop();
  const auto ended = decoding.get();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::limit_wait);
  EXPECT_EQ(::kill(pid, 0), -1) << "it has ended and was waited for";
  fs::remove(id);
}

TEST_F(MediaProcess, OneWaitsAfterManyAtOnce) {
  const fs::path folder = program_ + ".ids";
  fs::create_directory(folder);
  write_program("touch $0.ids/$$; until [ $(ls $0.ids | wc -l) = 2 ]; do sleep 0.01; done; " + std::string(kOnePixel));
  auto other = std::async(std::launch::async, [&] { return decode().has_value(); });
  EXPECT_TRUE(decode());
  EXPECT_TRUE(other.get());
  const auto runs = [](const fs::directory_entry& id) { return ::kill(std::stoi(id.path().filename()), 0) == 0; };
  EXPECT_EQ(std::ranges::count_if(fs::directory_iterator(folder), runs), 1);
  fs::remove_all(folder);
}

TEST_F(MediaProcess, OneThatCannotBeStartedIsNoErrorOfTheFile) {
  MediaProcesses none("/nonexistent");
  const auto failed = none.decode_picture(std::as_bytes(std::span(file_)), image::Turns::yes);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::runtime_decode);
}

TEST_F(MediaProcess, IsForUmadAlone) {
  EXPECT_EQ(run_media_command({"decode-media"}), 1);
  EXPECT_EQ(run_media_command({"decode-media", "1"}), 1);
}

#if defined(__linux__) && !UMA_HAS_SANITIZER
TEST(Confine, LeavesNothingButComputing) {
  const auto is_denied = [](auto result) { return static_cast<long>(result) == -1 && errno == EPERM; };
  EXPECT_EXIT(
      {
        if (!confine()) ::_exit(1);
        const std::string grown(std::size_t{1} << 24, 'x');  // Takes memory.
        const bool is_confined = is_denied(::open("/dev/null", O_RDONLY)) && is_denied(::socket(AF_UNIX, SOCK_STREAM, 0)) &&
                                 is_denied(::fork()) && is_denied(::unlink("/nonexistent")) &&
                                 ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
        ::_exit(is_confined && grown.back() == 'x' ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace uma::umad
