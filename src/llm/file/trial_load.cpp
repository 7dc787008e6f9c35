#include "llm/file/trial_load.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <fcntl.h>
#include <format>
#include <span>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <xxhash.h>

#include "base/bytes.h"
#include "base/system/unique_fd.h"
#include "core/model_file_name.h"
#include "llm/file/gguf_files.h"
#include "llm/file/gguf_header.h"
#include "llm/footprint.h"
#include "llm/llama_model.h"

namespace uma::llm {
namespace {

// Raised when a trial finds more problems than before, so that models are tested again.
constexpr int kTrialVersion = 1;

class Digest {
 public:
  Digest() { XXH3_128bits_reset(state_); }
  ~Digest() { XXH3_freeState(state_); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  void add(const void* data, std::size_t bytes) { XXH3_128bits_update(state_, data, bytes); }
  [[nodiscard]] std::string text() const {
    const XXH128_hash_t digest = XXH3_128bits_digest(state_);
    return std::format("{:016x}{:016x}", digest.high64, digest.low64);
  }

 private:
  XXH3_state_t* state_ = XXH3_createState();
};

// Adds the file's size and everything before its weights.
Expected<Unit> add_head(const std::string& path, Digest& digest, GgufKind kind = GgufKind::model) {
  const auto header = read_gguf_header(path, kind);
  if (!header) return std::unexpected(header.error());
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    return fail(ErrorCode::model_load, std::format("{}: the file cannot be read", path));
  }
  digest.add(&status.st_size, sizeof(status.st_size));
  std::vector<char> buffer(std::size_t{1} << 20);
  for (std::uint64_t at = 0; at < header->data_offset;) {
    const auto wanted = std::min<std::uint64_t>(buffer.size(), header->data_offset - at);
    const ssize_t got = ::pread(file.get(), buffer.data(), wanted, static_cast<off_t>(at));
    if (got <= 0) return fail(ErrorCode::model_load, std::format("{}: the file cannot be read at byte {}", path, at));
    digest.add(buffer.data(), static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
  }
  return Unit{};
}

std::string trial_versions() {
  return std::format("{} trial {}", llama_version_text(), kTrialVersion);
}

// A small context of a model in a trial.
ContextOptions trial_context() {
  ContextOptions context;
  context.cells = 64;
  context.sequences = 2;
  context.ubatch_rows = 16;
  return context;
}

// Ends every computation at once.
class EndAtOnce final : public CallMonitor {
 public:
  bool wants_end() override { return true; }
};

double cpu_s(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Sample {
  std::string_view name;
  std::string_view pattern;  // Repeated to fill the sample.
};
constexpr std::array<Sample, 8> kSamples = {{{"digits", "0123456789"},
                                             {"one letter", "a"},
                                             {"letters", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"},
                                             {"words", "Once upon a time, in 1984, there wasn't a model's file. "},
                                             {"marks", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"},
                                             {"blanks", " \n\t  \r\n"},
                                             {"wide characters", "\u4f60\u597d\U0001f600\u00e9\u0301\u0e44\u0e17\u0e22"},
                                             {"bytes that are not text", "\xff\x80\xc3"}}};

// The first part of a sample is short, so that a tokenizer without end is found soon. The whole sample follows if the part's
// time, multiplied by the cube of their lengths' ratio, exceeds the limit: no tokenizer known grows faster.
Expected<Unit> try_tokenizer(const Vocab& vocab, const TrialLimits& limits) {
  constexpr std::size_t kShortPart = 4;
  constexpr double kGrowthMax = kShortPart * kShortPart * kShortPart;
  for (const Sample& sample : kSamples) {
    std::string text;
    while (text.size() < limits.sample_bytes) text += sample.pattern;
    for (const std::size_t part : {kShortPart, std::size_t{1}}) {
      const std::size_t bytes = limits.sample_bytes / part;
      const double began = cpu_s();
      // A tokenizer may refuse a text.
      [[maybe_unused]] const auto tokens = vocab.tokenize(std::string_view(text).substr(0, bytes), true);
      const double taken = cpu_s() - began;
      if (part > 1 && taken * kGrowthMax <= limits.sample_s_max) break;
      if (taken <= limits.sample_s_max / static_cast<double>(part)) continue;
      return fail(ErrorCode::model_capability,
                  std::format("the tokenizer takes {:.1f} s for {} bytes of {}; the limit is {:.1f} s", taken, bytes,
                              sample.name, limits.sample_s_max / static_cast<double>(part)));
    }
  }
  return Unit{};
}

// Ends a computation after a CPU time of the process.
class EndAfter final : public CallMonitor {
 public:
  explicit EndAfter(double s) : end_s_(cpu_s(CLOCK_PROCESS_CPUTIME_ID) + s) {}
  bool wants_end() override { return is_over_ = is_over_ || cpu_s(CLOCK_PROCESS_CPUTIME_ID) >= end_s_; }
  [[nodiscard]] bool is_over() const { return is_over_; }

 private:
  const double end_s_;
  bool is_over_ = false;
};

// A gradient.
Picture sample_picture() {
  constexpr int kSide = 32;
  Picture picture{.width = kSide, .height = kSide, .levels = {}};
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      for (const int level : {255 - 4 * (x + y), 8 * y, 8 * x}) picture.levels.push_back(static_cast<std::uint8_t>(level));
    }
  }
  return picture;
}

// Half a second of a tone.
Clip sample_clip(std::int32_t sample_rate) {
  Clip clip{.sample_rate = sample_rate, .samples = {}};
  for (std::int32_t i = 0; i < sample_rate / 2; ++i) clip.samples.push_back(static_cast<float>(i * 400 & 0x3FFF) / 32'768);
  return clip;
}

Expected<Unit> try_encoding(Projector& projector, std::string_view what, const ProjectorInput& input, double s_max) {
  const auto layout = projector.layout(input);
  // A model that is refused for each image, with a reason, does no harm.
  if (!layout && layout.error().code == ErrorCode::model_capability) return Unit{};
  if (layout) {
    EndAfter monitor(s_max);
    const auto rows = projector.encode(input, &monitor);
    if (rows || monitor.is_over()) return Unit{};
    return fail(ErrorCode::model_capability, std::format("it cannot encode {}: {}", what, rows.error().message));
  }
  return fail(ErrorCode::model_capability, std::format("it cannot encode {}: {}", what, layout.error().message));
}

// The identity of a trial of the model with another file.
Expected<std::string> pair_identity(const std::string& path, const std::string& other_path, GgufKind kind) {
  const auto model = trial_identity(path);
  if (!model) return model;
  Digest digest;
  digest.add(model->data(), model->size());
  if (auto added = add_head(other_path, digest, kind); !added) return std::unexpected(added.error());
  return digest.text();
}

}  // namespace

Expected<std::string> trial_identity(const std::string& path) {
  const auto header = read_model_header(path);
  if (!header) return std::unexpected(header.error());
  Digest digest;
  for (const std::string& file : header->split_count > 1 ? model_files(path) : std::vector<std::string>{path}) {
    if (auto added = add_head(file, digest); !added) return std::unexpected(added.error());
  }
  const std::string versions = trial_versions();
  digest.add(versions.data(), versions.size());
  return digest.text();
}

Expected<std::string> adapter_trial_identity(const std::string& path, const std::string& adapter_path) {
  return pair_identity(path, adapter_path, GgufKind::adapter);
}

Expected<std::string> projector_trial_identity(const std::string& path, const std::string& projector_path) {
  return pair_identity(path, projector_path, GgufKind::model);
}

Expected<std::shared_ptr<const Model>> try_model(const std::string& path, const TrialLimits& limits,
                                                 const std::function<void()>& on_loadable) {
  auto model = load_llama_model(path, {.reads_weights = false});
  if (!model) return model;
  const ContextOptions context = trial_context();
  const bool is_chat = (*model)->facts().capability == Capability::chat;
  const auto made = is_chat ? (*model)->new_context(context).transform([](const auto&) { return Unit{}; })
                            : (*model)->new_embedding(embedding_options(context)).transform([](const auto&) { return Unit{}; });
  if (made && on_loadable) on_loadable();
  if (const auto tokenizer = try_tokenizer((*model)->vocab(), limits); !tokenizer) return std::unexpected(tokenizer.error());
  if (!made) return std::unexpected(made.error());
  return model;
}

Expected<Unit> try_adapter(const std::string& path, const std::string& adapter_path) {
  const auto model = load_llama_model(path, {.reads_weights = false, .adapters = {{.name = "trial", .path = adapter_path}}});
  if (!model) return std::unexpected(model.error());
  if (const std::string& problem = (*model)->facts().adapters.front().problem; !problem.empty()) {
    return fail(ErrorCode::model_load, problem);
  }
  auto context = (*model)->new_context(trial_context());
  if (!context) return std::unexpected(context.error());
  (*context)->use_adapters(make_adapter_set((*model)->facts().adapters, {{.index = 0, .scale = 1}}));
  EndAtOnce monitor;
  for (const std::int32_t rows : {1, 8}) {
    std::vector<BatchRow> batch;
    for (std::int32_t i = 0; i < rows; ++i) batch.push_back({.position = i, .wants_logits = i + 1 == rows});
    if (const auto begun = (*context)->decode(batch, &monitor); !begun) return std::unexpected(begun.error());
    if (!(*context)->truncate(0, 0)) return fail(ErrorCode::model_load, "a computation with the adapter cannot be ended");
  }
  return Unit{};
}

Expected<Unit> try_projector(const std::string& path, const std::string& projector_path, const ProjectorTrialLimits& limits) {
  const auto model = load_llama_model(path, {.reads_weights = false});
  if (!model) return std::unexpected(model.error());
  auto projector = (*model)->load_projector(projector_path, {});
  if (!projector) return std::unexpected(projector.error());
  const ProjectorFacts& facts = (*projector)->facts();
  if (facts.reads_images) {
    const Picture picture = sample_picture();
    const auto tried = try_encoding(**projector, "a picture of 32 by 32 pixels", &picture, limits.encoding_s_max);
    if (!tried) return tried;
  }
  if (!facts.reads_audio) return Unit{};
  const Clip clip = sample_clip(facts.sample_rate);
  return try_encoding(**projector, "half a second of sound", &clip, limits.encoding_s_max);
}

}  // namespace uma::llm
