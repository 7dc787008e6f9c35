// `embed` and `rerank`: vectors of texts or images, and documents in the order of their relevance to a query.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "uma-cli/client.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// What both have.
struct TextsOptions {
  std::vector<std::string> texts;  // none: `file`
  std::string file;                // one text a line; empty: standard input
  std::string model;               // empty: the daemon's default
  std::string long_input;          // empty: the daemon's default
  bool is_background = false;      // yields to others, and may wait for longer
  bool as_json = false;            // lines of JSON, which is what goes into a file or a pipe anyway
};

struct EmbedOptions {
  TextsOptions common;
  std::vector<std::string> images;  // in place of texts: files and addresses
  std::string task;
  std::int64_t dimensions = 0;  // 0: all
  bool is_raw = false;          // vectors as the model makes them, of any length
};

struct RerankOptions {
  TextsOptions common;  // the documents
  std::string query;
  std::int64_t top_n = 0;  // 0: all
};

// A JSON object per text, {"text", "embedding"}, or per image, {"image", "embedding"}; or, on a terminal, a table. Many texts
// go in several requests, and are printed as they come.
Result<void> run_embed(Client& client, const EmbedOptions& options, Output& output, Interrupts& interrupts);
// A JSON object per document, {"index", "score", "text"}, best first, or a table.
Result<void> run_rerank(Client& client, const RerankOptions& options, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
