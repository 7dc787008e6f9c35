// Measures the CPU time of chat templates that are made to waste it: from parsing the text until the error that ends them.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "jinja/chat_template.h"
#include "jinja/hostile_templates_test_support.h"

namespace {

using namespace uma::jinja;

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Returns the least of a few runs, in which the caches are warm; -1 if the template did not end with an error.
double least_cpu_ms(const std::string& source, const ChatTemplateInput& input) {
  constexpr int kRuns = 5;
  double least = 0;
  for (int run = 0; run < kRuns; ++run) {
    const double began = cpu_ms();
    const auto made = ChatTemplate::parse(source);
    const bool has_ended = !made || !made->render(input);
    const double ms = cpu_ms() - began;
    if (!has_ended) return -1;
    least = run == 0 ? ms : std::min(least, ms);
  }
  return least;
}

}  // namespace

int main() {
  std::vector<std::string> sources = endless_templates();
  for (auto& [source, why] : deep_templates()) sources.push_back(std::move(source));
  const ChatTemplateInput input = long_input();
  double worst = 0;
  std::string worst_source;
  for (const std::string& source : sources) {
    const double ms = least_cpu_ms(source, input);
    if (ms < 0) {
      std::fprintf(stderr, "this template must end with an error, but was rendered: %.200s\n", source.c_str());
      return 1;
    }
    std::printf("%8.2f ms  %.160s\n", ms, source.c_str());
    if (ms <= worst) continue;
    worst = ms;
    worst_source = source;
  }
  std::printf("worst of %zu: %.2f ms of CPU, %.160s\n", sources.size(), worst, worst_source.c_str());
  return 0;
}
