#include "uma-cli/embed.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <format>
#include <span>
#include <string_view>
#include <unistd.h>
#include <utility>

#include <boost/json/array.hpp>

#include "base/system/unique_fd.h"
#include "json/json_writer.h"
#include "uma-cli/chat/attachments.h"
#include "uma-cli/fields.h"
#include "uma-cli/print.h"
#include "uma-cli/printable.h"
#include "uma-cli/table.h"
#include "uma-cli/text_input.h"

namespace uma::cli {
namespace {

constexpr std::size_t kTextsPerRequest = 64;
// Fits a frame of the default limit, even if every character needs an escape.
constexpr std::size_t kBytesPerRequest = 384u << 10;
constexpr int kDeadlineMs = 60'000;
constexpr int kBackgroundDeadlineMs = 300'000;
constexpr std::size_t kTextColumns = 60;  // Width of the text column of a table.
constexpr std::size_t kNumbersShown = 4;

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string_view content = line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
    if (!content.empty()) lines.emplace_back(content);
  }
  return lines;
}

// Reads the texts from the arguments, a file or standard input.
Result<std::vector<std::string>> read_texts(const TextsOptions& options, Interrupts& interrupts) {
  for (const std::string& text : options.texts) {
    if (auto good = check_text(text, "a text argument"); !good) return std::unexpected(good.error());
  }
  if (!options.texts.empty() && !options.file.empty()) {
    return fail(ExitCode::usage, "texts come from arguments or from --file: give only one of the two");
  }
  if (!options.texts.empty()) return options.texts;
  UniqueFd file;
  if (!options.file.empty() && options.file != "-") {
    file = UniqueFd(::open(options.file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) return fail(ExitCode::usage, std::format("{}: {}", options.file, std::strerror(errno)));
  } else if (options.file.empty() && !is_piped(STDIN_FILENO)) {
    return fail(ExitCode::usage, "no texts: give them as arguments, with --file, or on standard input, one a line");
  }
  const auto text = read_whole(file.is_open() ? file.get() : STDIN_FILENO, file.is_open() ? options.file : "standard input",
                               false, interrupts);
  if (!text) return std::unexpected(text.error());
  std::vector<std::string> lines = lines_of(*text);
  if (lines.empty()) return fail(ExitCode::usage, "the input has no texts: every line is empty");
  return lines;
}

boost::json::object request_of(const TextsOptions& options, std::string_view type) {
  boost::json::object request{{"type", type}};
  if (!options.model.empty()) request["model"] = options.model;
  if (!options.long_input.empty()) request["long_input"] = options.long_input;
  if (options.is_background) {
    request["class"] = "background";
  } else {
    request["deadline_ms"] = kDeadlineMs;
  }
  return request;
}

std::string short_text(std::string_view text) {
  std::string line = printable_line(text);
  if (display_width(line) <= kTextColumns) return line;
  return std::string(clip(line, kTextColumns - 1)) + "…";
}

float number_of(const boost::json::value& value) {
  return value.is_number() ? value.to_number<float>() : 0.0f;
}

std::string first_numbers(const boost::json::array& vector) {
  std::string text;
  for (std::size_t i = 0; i < std::min(vector.size(), kNumbersShown); ++i) {
    text += std::format("{}{:.4f}", i == 0 ? "" : " ", number_of(vector[i]));
  }
  return vector.size() > kNumbersShown ? text + " …" : text;
}

// `kind` is the type of the input: "text" or "image".
void append_vector_line(std::string& lines, std::string_view kind, std::string_view name, const boost::json::array& vector) {
  json::ObjectWriter object(lines);
  object.field(kind, name);
  json::append_array(object.begin("embedding"), vector,
                     [&](const boost::json::value& value) { json::append_float(lines, number_of(value)); });
  object.close();
  lines += '\n';
}

void append_score_line(std::string& lines, std::int64_t index, float score, std::string_view document) {
  json::ObjectWriter object(lines);
  object.field("index", index);
  json::append_float(object.begin("score"), score);
  object.field("text", document);
  object.close();
  lines += '\n';
}

// Prints the vectors of `names` as they arrive, as lines or as rows of a table.
class VectorPrinter {
 public:
  VectorPrinter(Client& client, Output& output, std::string_view kind, bool as_json)
      : client_(client), output_(output), kind_(kind), as_table_(output.is_terminal() && !as_json) {}

  Result<void> ask(boost::json::object request, std::span<const std::string> names) {
    const auto answer = client_.call(std::move(request), "embedding");
    if (!answer) return std::unexpected(answer.error());
    const boost::json::array& vectors = array_field(*answer, "embeddings");
    if (vectors.size() != names.size() || !std::ranges::all_of(vectors, &boost::json::value::is_array)) {
      return fail(ExitCode::protocol,
                  std::format("the daemon sent {} vectors for {} {}s", vectors.size(), names.size(), kind_));
    }
    std::string lines;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const boost::json::array& vector = vectors[i].get_array();
      if (as_table_) {
        table_.add({short_text(names[i]), std::to_string(vector.size()), first_numbers(vector)});
      } else {
        append_vector_line(lines, kind_, names[i], vector);
      }
    }
    return print(output_, lines);
  }
  Result<void> end() { return as_table_ ? print(output_, table_.text()) : Result<void>(); }

 private:
  Client& client_;
  Output& output_;
  const std::string_view kind_;
  const bool as_table_;
  Table table_{{{kind_ == "image" ? "IMAGE" : "TEXT"}, {"NUMBERS", Align::right}, {"VECTOR"}}};
};

Result<void> embed_images(Client& client, const EmbedOptions& options, Output& output) {
  const TextsOptions& common = options.common;
  if (!common.texts.empty() || !common.file.empty())
    return fail(ExitCode::usage, "embed takes texts or images in one call: give only one of the two");
  if (!options.task.empty() || options.dimensions > 0 || options.is_raw || !common.long_input.empty()) {
    return fail(ExitCode::usage,
                "--task, --dimensions, --raw and --long-input work with texts only: leave them out for images");
  }
  if (auto sees = check_reads(client, common.model, Media::image); !sees) return sees;
  VectorPrinter printer(client, output, "image", common.as_json);
  for (std::size_t begin = 0; begin < options.images.size();) {
    boost::json::array images;
    for (std::size_t chars = 0; begin + images.size() < options.images.size() && images.size() < kImagesPerRequest;) {
      auto image = read_images(std::span(&options.images[begin + images.size()], 1));
      if (!image) return std::unexpected(image.error());
      chars += text_field(image->front(), "data").size();
      if (!images.empty() && chars / 4 * 3 > kFileBytesPerRequest) break;
      images.push_back(std::move(image->front()));
    }
    const std::span names = std::span(options.images).subspan(begin, images.size());
    boost::json::object request{{"type", "embed_image"},
                                {"images", std::move(images)},
                                {"deadline_ms", common.is_background ? kBackgroundDeadlineMs : kImageDeadlineMs}};
    if (!common.model.empty()) request["model"] = common.model;
    if (auto printed = printer.ask(std::move(request), names); !printed) return printed;
    begin += names.size();
  }
  return printer.end();
}

}  // namespace

Result<void> run_embed(Client& client, const EmbedOptions& options, Output& output, Interrupts& interrupts) {
  if (!options.images.empty()) return embed_images(client, options, output);
  auto texts = read_texts(options.common, interrupts);
  if (!texts) return std::unexpected(texts.error());
  VectorPrinter printer(client, output, "text", options.common.as_json);
  for (std::size_t begin = 0; begin < texts->size();) {
    boost::json::array part;
    for (std::size_t bytes = 0; begin + part.size() < texts->size() && part.size() < kTextsPerRequest;) {
      const std::string& text = (*texts)[begin + part.size()];
      bytes += text.size();
      if (!part.empty() && bytes > kBytesPerRequest) break;
      part.emplace_back(text);
    }
    const std::size_t count = part.size();
    boost::json::object request = request_of(options.common, "embed");
    request["texts"] = std::move(part);
    if (!options.task.empty()) request["task"] = options.task;
    if (options.dimensions > 0) request["dimensions"] = options.dimensions;
    if (options.is_raw) request["normalize"] = false;
    if (auto printed = printer.ask(std::move(request), std::span(*texts).subspan(begin, count)); !printed) return printed;
    begin += count;
  }
  return printer.end();
}

Result<void> run_rerank(Client& client, const RerankOptions& options, Output& output, Interrupts& interrupts) {
  if (auto good = check_text(options.query, "--query"); !good) return std::unexpected(good.error());
  auto documents = read_texts(options.common, interrupts);
  if (!documents) return std::unexpected(documents.error());
  boost::json::object request = request_of(options.common, "rerank");
  request["query"] = options.query;
  request["documents"] = boost::json::array(documents->begin(), documents->end());
  if (options.top_n > 0) request["top_n"] = options.top_n;
  const auto answer = client.call(std::move(request), "rerank");
  if (!answer) return std::unexpected(answer.error());
  const bool as_table = output.is_terminal() && !options.common.as_json;
  Table table({{"SCORE", Align::right}, {"INDEX", Align::right}, {"DOCUMENT"}});
  std::string lines;
  for (const boost::json::value& value : array_field(*answer, "results")) {
    const boost::json::object result = value.is_object() ? value.get_object() : boost::json::object();
    const std::int64_t index = int_field(result, "index");
    if (!result.contains("score") || index < 0 || index >= static_cast<std::int64_t>(documents->size())) {
      return fail(ExitCode::protocol,
                  std::format("the daemon sent a result without a score, or for document {} of {}", index, documents->size()));
    }
    const std::string& document = (*documents)[static_cast<std::size_t>(index)];
    if (as_table) {
      table.add({std::format("{:.4f}", number_field(result, "score")), std::to_string(index), short_text(document)});
    } else {
      append_score_line(lines, index, number_of(result.at("score")), document);
    }
  }
  return print(output, as_table ? table.text() : lines);
}

}  // namespace uma::cli
