// The interface of an encoder of images and clips of sound (libmtmd). The rows of an image take the place of token embeddings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "llm/device/call_monitor.h"
#include "llm/media/clip.h"
#include "llm/picture/picture.h"

namespace uma::llm {

struct ProjectorFacts {
  std::string identity;        // Differs between projectors that compute other rows for the same image.
  std::int32_t row_width = 0;  // Numbers of a row.
  bool has_grids = false;      // Images have an ImageGrid.
  bool reads_images = true;
  bool reads_audio = false;
  std::int32_t sample_rate = 0;  // Rate of the clips that it reads, in Hz; 0: it reads none.
};

// A position of several dimensions (M-RoPE), in the library's order: time, line, column, and a spare one.
using GridPlace = std::array<std::int32_t, 4>;

// The positions of an image's rows in a model with M-RoPE. All rows of a piece must be computed in one call.
struct ImageGrid {
  std::vector<GridPlace> places;  // Place of each row, if its piece begins at position 0; empty: positions of one dimension.
  GridPlace moves{};              // 1 for each dimension that grows with the position at which a piece begins, else 0.
  std::vector<std::int32_t> advance;  // Positions that each piece takes, fewer than its rows.
  bool operator==(const ImageGrid&) const = default;
};

// The place of an image in a chain.
struct ImageLayout {
  std::vector<Token> tokens;         // Marker tokens around the pieces, and kNoToken for each row.
  std::vector<std::int32_t> pieces;  // Row count of each piece, in order.
  ImageGrid grid{};
  bool is_causal = true;  // False: the rows of a piece attend to each other, so one call must compute them all.

  [[nodiscard]] std::int32_t rows_count() const {
    std::int32_t rows = 0;
    for (const std::int32_t piece : pieces) rows += piece;
    return rows;
  }
};

struct ProjectorOptions {
  std::int32_t threads = 1;
  // Larger images are scaled down, if the projector can; 0: its own limit, or 1,024 with grids. With grids at most 2,048.
  std::int32_t image_tokens_max = 0;
};

// The input of a projector. Borrowed; the pointer is not null.
using ProjectorInput = std::variant<const Picture*, const Clip*>;

class Projector {
 public:
  virtual ~Projector() = default;
  [[nodiscard]] virtual const ProjectorFacts& facts() const = 0;
  // Its device is lost: it encodes no more. Any thread.
  [[nodiscard]] virtual bool is_lost() const { return false; }
  // The spectrogram of a clip is computed, on three threads more. Any thread. Errors: E_PROTO_003 for what the library does not
  // take; E_MODEL_003 for an image or a clip that the projector does not read. Requires: a clip has samples of `sample_rate`.
  [[nodiscard]] virtual Expected<ImageLayout> layout(const ProjectorInput& image) const = 0;
  // Computes rows_count() rows of row_width numbers. One thread at a time. `monitor` may end the computation early; null: no
  // monitor. Errors: as layout(); E_LIMIT_003 if it was ended early; E_RUNTIME_001.
  [[nodiscard]] virtual Expected<std::vector<float>> encode(const ProjectorInput& image, CallMonitor* monitor) = 0;
};

}  // namespace uma::llm
