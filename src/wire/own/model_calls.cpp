#include "wire/own/model_calls.h"

#include <format>

#include "base/sha256.h"
#include "json/json_writer.h"
#include "wire/ollama/ollama_models.h"

namespace uma::wire {
namespace {

constexpr json::TextBytes kNameBytes{1, kPullSourceBytesMax};

std::string ollama_name(json::FieldReader& fields) {
  const std::string name = fields.find("model") == nullptr && fields.find("name") != nullptr
                               ? fields.required_text("name", kNameBytes)
                               : fields.required_text("model", kNameBytes);
  return std::string(without_latest_tag(name));
}

}  // namespace

std::expected<std::string, RejectedBody> decode_model_call(std::string_view body) {
  return decode_body<std::string>(body, [](json::FieldReader& fields) { return fields.required_text("model", kNameBytes); });
}

std::expected<std::string, RejectedBody> decode_ollama_delete(std::string_view body) {
  return decode_body<std::string>(body, ollama_name);
}

std::expected<OllamaPull, RejectedBody> decode_ollama_pull(std::string_view body) {
  return decode_body<OllamaPull>(body, [](json::FieldReader& fields) {
    return OllamaPull{.source = ollama_name(fields), .stream = fields.boolean("stream").value_or(true)};
  });
}

std::expected<OllamaCopy, RejectedBody> decode_ollama_copy(std::string_view body) {
  return decode_body<OllamaCopy>(body, [](json::FieldReader& fields) {
    const std::string source = fields.required_text("source", kNameBytes);
    const std::string destination = fields.required_text("destination", kNameBytes);
    return OllamaCopy{.source = std::string(without_latest_tag(source)),
                      .destination = std::string(without_latest_tag(destination))};
  });
}

std::string ollama_pull_json(const PullProgress& progress) {
  std::string out;
  json::ObjectWriter object(out);
  if (progress.file.empty()) {
    object.field("status", "pulling manifest");
  } else {
    object.field("status", std::format("pulling {}", progress.file));
    // Clients tell the files of a pull apart by it. The digest of the contents is known only at the end.
    Sha256 digest;
    digest.add(progress.file);
    object.field("digest", std::format("sha256:{}", digest.hex()));
    if (progress.bytes_total) object.field("total", *progress.bytes_total);
    object.field("completed", progress.bytes_done);
  }
  object.close();
  return out;
}

std::string ollama_pulled_json() {
  return R"({"status":"success"})";
}

}  // namespace uma::wire
