// `imagine` has pictures drawn from a caption and writes them as PNG files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "uma-cli/chat/terminal_image.h"
#include "uma-cli/client.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

struct ImagineOptions {
  std::string caption;
  std::string negative;              // Content that the picture should not show.
  std::string file;                  // Empty: a new name after the caption, in the current folder; -: standard output.
  std::string model;                 // Empty: the daemon's choice.
  std::optional<std::int64_t> size;  // Pixels of a side.
  std::optional<std::int64_t> steps;
  std::optional<double> guidance;
  std::optional<std::uint64_t> seed;
  std::string sampler;   // Empty: the model's.
  std::string schedule;  // Name; empty: the model's.
  std::string image;     // Path of a picture to begin with; empty: none.
  std::optional<double> strength;
  std::int64_t count = 1;
  bool is_background = false;
  bool has_no_metadata = false;  // The files do not contain the caption.
  std::string show = "auto";     // auto, no, kitty, iterm or sixel.
};

// Prints the path of each file. On a terminal it shows the progress on standard error, and the pictures. An existing file is
// replaced only if its name is given.
Result<void> run_imagine(Client& client, const ImagineOptions& options, Output& output, Interrupts& interrupts);

// "a-red-circle" for "A red circle!": at most 40 letters, digits and dashes; "picture" if nothing is left.
[[nodiscard]] std::string file_stem_of(const std::string& caption);

}  // namespace uma::cli
