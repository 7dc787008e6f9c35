// Property: for any model file, the daemon survives its first load and has a result. Either our header reader refuses the file
// with a message, or libllama loads the file in a child process, as in ModelTrials, with a known result: the file passed, the
// library refused it, or the process ended. A projector is loaded with a model of random weights, and encodes. A sanitizer
// report about our own code in the child is not a known result. The input is the header of the file, followed by zeros as
// weights.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sanitizer/asan_interface.h>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/system/unique_fd.h"
#include "llm/file/gguf_header.h"
#include "llm/file/trial_load.h"
#include "make_model/model_file.h"
#include "umad/process/trial_process.h"

namespace {

namespace fs = std::filesystem;

using namespace uma;

constexpr std::uint64_t kFileBytes = 1 << 20;

std::string& model_file() {
  static std::string path;
  return path;
}

// The model of the projectors.
std::string& text_model_file() {
  static std::string path;
  return path;
}

void remove_model_files() {
  ::unlink(model_file().c_str());
  ::unlink(text_model_file().c_str());
}

void write_text_model() {
  const ModelSpec spec{.name = "text",
                       .type = GGML_TYPE_F16,
                       .layers = 1,
                       .width = 64,
                       .heads = 4,
                       .kv_heads = 2,
                       .feed_forward = 64,
                       .n_ctx = 512,
                       .vocabulary_size = 1536};
  UMA_CHECK(write_model(spec, text_model_file()).has_value());
}

void write_model_file(std::span<const std::uint8_t> header) {
  const UniqueFd file(::open(model_file().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  UMA_CHECK(file.is_open());
  UMA_CHECK(::write(file.get(), header.data(), header.size()) == static_cast<ssize_t>(header.size()));
  UMA_CHECK(::ftruncate(file.get(), static_cast<off_t>(kFileBytes)) == 0);
}

}  // namespace

// In the child, an impossible allocation aborts as in a release build; the parent sees how the child ended.
extern "C" void __asan_on_error() {  // NOLINT(bugprone-reserved-identifier): the name is the sanitizer's.
  const std::string_view what = __asan_get_report_description();
  if (what.contains("allocation-size-too-big") || what.contains("out-of-memory") || what.contains("calloc-overflow"))
    std::abort();
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::vector<std::string> arguments(*argv + 1, *argv + *argc);
  // The program starts itself, as umad does.
  if (!arguments.empty() && arguments[0] == umad::kTrialCommand) std::exit(umad::run_trial_command(arguments));
  ::setenv("ASAN_OPTIONS",
           "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0:detect_leaks=0:exitcode=99:"
           "max_allocation_size_mb=4096",
           1);
  init_log(LogLevel::error);
  const fs::path folder = fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
  model_file() = (folder / ("uma-fuzz-" + std::to_string(::getpid()) + ".gguf")).string();
  text_model_file() = (folder / ("uma-fuzz-text-" + std::to_string(::getpid()) + ".gguf")).string();
  std::atexit(remove_model_files);
  write_text_model();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, std::min<std::size_t>(size, kFileBytes));
  const auto header = llm::read_gguf_header(kFileBytes, [&](std::uint64_t offset, std::span<std::byte> into) {
    std::ranges::fill(into, std::byte{0});
    if (offset < bytes.size()) {
      std::memcpy(into.data(), bytes.data() + offset, std::min<std::size_t>(into.size(), bytes.size() - offset));
    }
    return static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), kFileBytes - std::min(offset, kFileBytes)));
  });
  if (!header) {
    UMA_CHECK(header.error().code == ErrorCode::model_load && !header.error().message.empty());
    return 0;
  }
  write_model_file(bytes);
  umad::TrialFile file{.model_path = model_file()};
  if (header->is_projector()) {
    file = {.model_path = text_model_file(), .kind = umad::TrialFile::Kind::projector, .other_path = model_file()};
  }
  const auto identity = header->is_projector() ? llm::projector_trial_identity(file.model_path, file.other_path)
                                               : llm::trial_identity(file.model_path);
  if (!identity) {
    UMA_CHECK(!identity.error().message.empty());  // A part of a model.
    return 0;
  }
  static const std::string kProgram = fs::read_symlink("/proc/self/exe").string();
  const umad::TrialOutcome outcome =
      umad::run_trial(kProgram, file, {.is_cancelled = [] { return false; }, .has_streams = [] { return false; }});
  UMA_CHECK(outcome.kind != umad::TrialOutcome::Kind::unknown);
  UMA_CHECK(outcome.kind == umad::TrialOutcome::Kind::passed || !outcome.reason.empty());
  if (std::getenv("UMA_FUZZ_COST") != nullptr) {
    std::fprintf(stderr, "verdict %d: %s (%s)\n", static_cast<int>(outcome.kind), outcome.reason.c_str(),
                 outcome.last_words.c_str());
  }
  return 0;
}
