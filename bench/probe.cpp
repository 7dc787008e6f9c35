// Prints the facts about a model and this machine on which the scheduler's rules stand: what calls of libllama cost by their
// rows, behind how many tokens, and in which order of sequences. Every table measures its cases in turn, forwards and
// backwards, and shows medians. docs/MEASUREMENTS.md has the rules.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <llama.h>

#include "base/system/cpu_load.h"
#include "llm/llama_model.h"

namespace uma {
namespace {

using ModelPtr = std::unique_ptr<llama_model, decltype(&llama_model_free)>;

[[noreturn]] void give_up(std::string_view what) {
  std::fprintf(stderr, "bench_probe: %.*s\n", static_cast<int>(what.size()), what.data());
  std::exit(1);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// --- A model and its contexts

// The kinds of memory that hold the weights, which the library tells its log only.
std::string& weight_memory() {
  static std::string kinds;
  return kinds;
}

void note_memory(ggml_log_level /*level*/, const char* text, void* /*data*/) {
  std::string_view line(text);
  const std::size_t end = line.find(" model buffer size");
  if (end == std::string_view::npos) return;
  line = line.substr(0, end);
  line.remove_prefix(line.rfind(' ') + 1);
  if (weight_memory().contains(line)) return;
  weight_memory() += (weight_memory().empty() ? "" : ", ") + std::string(line);
}

ModelPtr load(const std::string& path, bool repacks) {
  weight_memory().clear();
  llama_model_params params = llama_model_default_params();
  params.use_extra_bufts = repacks;
  ModelPtr model(llama_model_load_from_file(path.c_str(), params), &llama_model_free);
  if (!model) give_up(path + " cannot be loaded");
  return model;
}

struct Shape {
  std::int32_t sequences = 1;
  std::int32_t sequence_cells = 1024;
  bool has_flash_attention = true;
  bool is_unified = false;
};

// Rows of one sequence in a call.
struct Rows {
  std::int32_t sequence = 0;
  std::int32_t count = 1;
};

class Context {
 public:
  Context(llama_model* model, const Shape& shape)
      : context_(make(model, shape), &llama_free), batch_(llama_batch_init(kRowsMax, 0, 1)) {
    if (!context_) give_up("a context cannot be made");
    lengths_.resize(static_cast<std::size_t>(shape.sequences));
  }
  ~Context() { llama_batch_free(batch_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Computes the rows in one call, and returns its time in ms. All rows have logits, as draft tokens have, or the last one, as
  // in a prompt.
  double run(std::int32_t threads, std::span<const Rows> all, bool all_logits) {
    llama_set_n_threads(context_.get(), threads, threads);
    batch_.n_tokens = 0;
    for (const Rows& rows : all) {
      for (std::int32_t i = 0; i < rows.count; ++i) {
        const std::int32_t at = batch_.n_tokens++;
        batch_.token[at] = 1 + at % 200;
        batch_.pos[at] = lengths_[static_cast<std::size_t>(rows.sequence)] + i;
        batch_.n_seq_id[at] = 1;
        batch_.seq_id[at][0] = rows.sequence;
        batch_.logits[at] = all_logits || i + 1 == rows.count ? 1 : 0;
      }
    }
    const auto began = std::chrono::steady_clock::now();
    if (llama_decode(context_.get(), batch_) != 0) give_up("a call failed");
    llama_synchronize(context_.get());
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
  }
  // Computes the rows as run() does, and drops them again.
  double measure(std::int32_t threads, std::span<const Rows> all, bool all_logits) {
    const double ms = run(threads, all, all_logits);
    for (const Rows& rows : all) {
      const llama_pos length = lengths_[static_cast<std::size_t>(rows.sequence)];
      if (!llama_memory_seq_rm(llama_get_memory(context_.get()), rows.sequence, length, -1)) give_up("rows cannot be dropped");
    }
    return ms;
  }
  // Fills the first two sequences with the same tokens.
  void extend_to(std::int32_t threads, std::int32_t length) {
    if (length == 0) return;
    for (std::int32_t& now = lengths_[0]; now < length;) {
      const Rows rows{0, std::min(kRowsMax, length - now)};
      run(threads, std::span(&rows, 1), false);
      now += rows.count;
    }
    std::vector<std::uint8_t> state(llama_state_seq_get_size(context_.get(), 0));
    const std::size_t got = llama_state_seq_get_data(context_.get(), state.data(), state.size(), 0);
    if (got == 0 || llama_state_seq_set_data(context_.get(), state.data(), got, 1) == 0) give_up("a state cannot be copied");
    lengths_[1] = lengths_[0];
  }

 private:
  static constexpr std::int32_t kRowsMax = 512;

  static llama_context* make(llama_model* model, const Shape& shape) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(shape.sequences * shape.sequence_cells);
    params.n_batch = params.n_ubatch = kRowsMax;
    params.n_seq_max = static_cast<std::uint32_t>(shape.sequences);
    params.flash_attn_type = shape.has_flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.kv_unified = shape.is_unified;
    return llama_init_from_model(model, params);
  }

  std::unique_ptr<llama_context, decltype(&llama_free)> context_;
  llama_batch batch_;
  std::vector<std::int32_t> lengths_;
};

// --- Measuring

using Case = std::function<double()>;  // Runs once and returns its ms.

// Medians of `rounds` repetitions, after one that is not counted.
std::vector<double> medians(std::span<const Case> cases, int rounds) {
  std::vector<std::vector<double>> ms(cases.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::size_t index = round % 2 == 0 ? i : cases.size() - 1 - i;
      const double took = cases[index]();
      if (round >= 0) ms[index].push_back(took);
    }
  }
  std::vector<double> result;
  for (std::vector<double>& each : ms) result.push_back(median(std::move(each)));
  return result;
}

struct Settings {
  std::int32_t threads = 2;  // The most.
  int rounds = 3;
  std::int32_t depth = 4000;  // Tokens of a long context.
  std::int32_t widths = 16;   // Rows of the widest decode call.
};

std::vector<std::int32_t> thread_counts(const Settings& settings) {
  return settings.threads == 1 ? std::vector{1} : std::vector{1, settings.threads};
}

// --- The tables

void print_decode_rows(llama_model* model, llama_model* plain, const Settings& settings) {
  std::printf("\n## Decode calls of one sequence, in units of one row\n| rows |");
  for (std::int32_t n = 1; n <= settings.widths; ++n) std::printf(" %d |", n);
  std::printf(" one row, ms | cheaper than one row less |\n|---|");
  for (std::int32_t n = 1; n <= settings.widths + 2; ++n) std::printf("---|");
  std::puts("");
  const auto row = [&](llama_model* of, std::int32_t threads, const char* what) {
    Context context(of, {});
    std::vector<Case> cases;
    for (std::int32_t n = 1; n <= settings.widths; ++n) {
      cases.emplace_back([&context, threads, n] { return context.measure(threads, std::array{Rows{0, n}}, true); });
    }
    const std::vector<double> ms = medians(cases, 2 * settings.rounds + 1);
    std::printf("| %d thread(s)%s |", threads, what);
    std::string cheaper;
    for (std::size_t i = 0; i < ms.size(); ++i) {
      std::printf(" %.2f |", ms[i] / ms[0]);
      if (i > 0 && ms[i] < 0.97 * ms[i - 1]) cheaper += (cheaper.empty() ? "" : ", ") + std::to_string(i + 1);
    }
    std::printf(" %.2f | %s |\n", ms[0], cheaper.empty() ? "-" : cheaper.c_str());
    std::fflush(stdout);
  };
  for (const std::int32_t threads : thread_counts(settings)) row(model, threads, "");
  row(plain, settings.threads, ", not repacked");
}

constexpr std::array<std::int32_t, 10> kPromptRows{60, 63, 64, 65, 72, 96, 128, 192, 256, 512};

void print_prompt_row(const char* what, Context& context, std::int32_t threads, int rounds, std::int32_t rows_max) {
  std::vector<Case> cases;
  for (const std::int32_t n : kPromptRows) {
    if (n <= rows_max) cases.emplace_back([&, n] { return context.measure(threads, std::array{Rows{0, n}}, false); });
  }
  cases.emplace_back([&] { return context.measure(threads, std::array{Rows{0, 8}}, false); });
  std::vector<double> ms = medians(cases, rounds);
  const double eight = ms.back();
  ms.pop_back();
  std::printf("| %s, %d thread(s) |", what, threads);
  for (std::size_t i = 0; i < kPromptRows.size(); ++i) {
    i < ms.size() ? std::printf(" %.3f |", ms[i] / kPromptRows[i]) : std::printf(" |");
  }
  std::printf(" %.3f | %.2f |\n", (ms[0] / kPromptRows[0]) / (ms[2] / kPromptRows[2]), ms[4] / (ms[2] + eight));
  std::fflush(stdout);
}

void print_prompts(llama_model* model, llama_model* plain, const Settings& settings) {
  std::printf("\n## Calls of one prompt, ms per row\n| |");
  for (const std::int32_t n : kPromptRows) std::printf(" %d |", n);
  std::printf(" step at 64: 60 ÷ 64 | 72 ÷ (64 + 8) |\n|---|");
  for (std::size_t i = 0; i < kPromptRows.size() + 2; ++i) std::printf("---|");
  std::puts("");
  const int rounds = std::max(3, settings.rounds / 2);
  Context flash(model, {});
  print_prompt_row("flash attention", flash, settings.threads, rounds, kPromptRows.back());
  if (settings.threads > 1) print_prompt_row("flash attention", flash, 1, rounds, 128);
  Context other(model, {.has_flash_attention = false});
  print_prompt_row("no flash attention", other, settings.threads, rounds, 72);
  Context unpacked(plain, {});
  print_prompt_row("not repacked", unpacked, settings.threads, rounds, 72);
}

// A call that is measured behind several numbers of tokens.
struct DepthCase {
  const char* name;
  std::vector<Rows> rows;
  std::int32_t threads;
  std::vector<double> ms;  // Behind each number of tokens.
};

void measure_at(Context& context, std::span<DepthCase> all, int rounds) {
  std::vector<Case> cases;
  for (DepthCase& each : all) cases.emplace_back([&] { return context.measure(each.threads, each.rows, false); });
  const std::vector<double> ms = medians(cases, rounds);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].ms.push_back(ms[i]);
}

void print_depth(llama_model* model, const Settings& settings) {
  // Arithmetic of a row's attention to one token, relative to the row's with all weights.
  const double share =
      2.0 * llama_model_n_layer(model) * llama_model_n_embd(model) / static_cast<double>(llama_model_n_params(model));
  std::vector<DepthCase> few;
  std::vector<DepthCase> many;
  for (const std::int32_t threads : thread_counts(settings)) {
    few.push_back({"a lone row", {{0, 1}}, threads, {}});
    few.push_back({"a row of each of two sequences", {{0, 1}, {1, 1}}, threads, {}});
    few.push_back({"8 rows of a prompt", {{0, 8}}, threads, {}});
  }
  many.push_back({"60 rows of a prompt", {{0, 60}}, settings.threads, {}});
  many.push_back({"64 rows of a prompt", {{0, 64}}, settings.threads, {}});
  many.push_back({"72 rows of a prompt", {{0, 72}}, settings.threads, {}});
  Context context(model, {.sequences = 2, .sequence_cells = settings.depth + 512});
  for (const std::int32_t length : {0, settings.depth / 4, settings.depth}) {
    context.extend_to(std::max(2, settings.threads), length);
    measure_at(context, few, 2 * settings.rounds + 1);
    measure_at(context, many, 3);
  }
  std::printf(
      "\n## Behind tokens, ms (flash attention)\n"
      "| | 0 | %d | %d | µs per row and token before it | slower than by weights |\n|---|---|---|---|---|---|\n",
      settings.depth / 4, settings.depth);
  for (const std::vector<DepthCase>& cases : {few, many}) {
    for (const DepthCase& each : cases) {
      std::int32_t rows = 0;
      for (const Rows& part : each.rows) rows += part.count;
      const double cell_ms = (each.ms[2] - each.ms[0]) / settings.depth / rows;
      std::printf("| %s, %d thread(s) | %.2f | %.2f | %.2f | %.2f | %.1f |\n", each.name, each.threads, each.ms[0], each.ms[1],
                  each.ms[2], 1e3 * cell_ms, cell_ms / (each.ms[0] / rows * share));
    }
  }
  std::fflush(stdout);
}

void print_sequences(llama_model* model, const Settings& settings) {
  std::printf(
      "\n## One row of each of four sequences, in units of the first column\n"
      "| | 0, 1, 2, 3 | 4, 5, 6, 7 | 0, 2, 1, 3 | 0, 1, 3, 4 | 0, 2, 4, 6 | 2 rows of 0, one of 1, 2, 3 "
      "|\n|---|---|---|---|---|---|---|\n");
  const std::array<std::vector<Rows>, 6> orders{{{{0}, {1}, {2}, {3}},
                                                 {{4}, {5}, {6}, {7}},
                                                 {{0}, {2}, {1}, {3}},
                                                 {{0}, {1}, {3}, {4}},
                                                 {{0}, {2}, {4}, {6}},
                                                 {{0, 2}, {1}, {2}, {3}}}};
  for (const bool is_unified : {false, true}) {
    Context context(model, {.sequences = 8, .sequence_cells = 512, .is_unified = is_unified});
    std::vector<Case> cases;
    for (const std::vector<Rows>& order : orders) {
      cases.emplace_back([&] { return context.measure(settings.threads, order, true); });
    }
    const std::vector<double> ms = medians(cases, 2 * settings.rounds + 1);
    std::printf("| %s, %d thread(s) |", is_unified ? "unified" : "split", settings.threads);
    for (const double each : ms) std::printf(" %.2f |", each / ms[0]);
    std::puts("");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace uma

int main(int argc, char** argv) {
  CLI::App app{"Measures on libllama what calls of a model cost on this machine, and prints tables."};
  std::string path;
  uma::Settings settings;
  app.add_option("--model", path, "a GGUF file")->required()->check(CLI::ExistingFile);
  app.add_option("--threads", settings.threads, "the most threads (default 2)");
  app.add_option("--rounds", settings.rounds, "repetitions; more for short calls (default 3)")->check(CLI::Range(3, 100));
  app.add_option("--depth", settings.depth, "tokens of a long context (default 4000)")->check(CLI::Range(256, 100'000));
  app.add_option("--widths", settings.widths, "rows of the widest decode call (default 16)")->check(CLI::Range(2, 64));
  CLI11_PARSE(app, argc, argv);
  uma::CpuLoad load;
  (void)load.others_since_last();
  uma::llm::init_llama();
  llama_log_set(&uma::note_memory, nullptr);
  const uma::ModelPtr model = uma::load(path, true);
  std::printf("# %s\n%s; weights in: %s\n", path.c_str(), uma::llm::backends_text().c_str(), uma::weight_memory().c_str());
  const uma::ModelPtr plain = uma::load(path, false);
  print_decode_rows(model.get(), plain.get(), settings);
  print_prompts(model.get(), plain.get(), settings);
  print_depth(model.get(), settings);
  print_sequences(model.get(), settings);
  const double others = load.others_since_last().value_or(0);
  std::printf("\nOther programs used %.1f cores%s.\n", others,
              others > 0.3 ? ": do not trust these figures, measure again" : "");
  return 0;
}
