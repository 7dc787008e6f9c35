// `embed` computes vectors of texts or images; `rerank` sorts documents by their relevance to a query.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "uma-cli/client.h"
#include "uma-cli/interrupts.h"
#include "uma-cli/output.h"
#include "uma-cli/result.h"

namespace uma::cli {

// Options of both commands.
struct TextsOptions {
  std::vector<std::string> texts;  // Empty: the texts come from `file`.
  std::string file;                // One text per line; empty: standard input.
  std::string model;               // Empty: the daemon's default.
  std::string long_input;          // Empty: the daemon's default.
  bool is_background = false;      // Lets interactive requests go first, and may wait longer.
  bool as_json = false;            // Prints JSON lines on a terminal, too; files and pipes always get JSON lines.
};

struct EmbedOptions {
  TextsOptions common;
  std::vector<std::string> images;  // Files and URLs to embed in place of texts.
  std::string task;
  std::int64_t dimensions = 0;  // 0: all
  bool is_raw = false;          // Vectors as the model computes them, not scaled to length 1.
};

struct RerankOptions {
  TextsOptions common;  // Options of the documents.
  std::string query;
  std::int64_t top_n = 0;  // 0: all
};

// Prints a JSON object per text, {"text", "embedding"}, or per image, {"image", "embedding"}; on a terminal a table. Many texts
// are sent in several requests and printed as the answers arrive.
Result<void> run_embed(Client& client, const EmbedOptions& options, Output& output, Interrupts& interrupts);
// Prints a JSON object per document, {"index", "score", "text"}, best first; on a terminal a table.
Result<void> run_rerank(Client& client, const RerankOptions& options, Output& output, Interrupts& interrupts);

}  // namespace uma::cli
