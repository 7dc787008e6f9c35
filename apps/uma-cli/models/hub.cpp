#include "uma-cli/models/hub.h"

#include <algorithm>
#include <cctype>
#include <format>
#include <iterator>
#include <ranges>

#include <boost/json/parse.hpp>

#include "base/text.h"
#include "uma-cli/fields.h"
#include "uma-cli/format.h"
#include "uma-cli/printable.h"
#include "uma-cli/table.h"

namespace uma::cli {
namespace {

constexpr std::string_view kPreferred = "q4_k_m";
constexpr std::size_t kChoicesMax = 100;
constexpr double kSizeMax = 9e15;  // Largest size of which every integer is exact in a double.

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_gguf(const HubFile& file) {
  return lower_ascii(base_name(file.path)).ends_with(".gguf");
}
// Repositories also have such files of models that are not served: one is only taken by its whole name.
bool is_safetensors(const HubFile& file) {
  return lower_ascii(base_name(file.path)).ends_with(".safetensors");
}

// Whether `word` is a component of `name`, bounded by `separators` or by an end. Both are in lower case.
bool has_word(std::string_view name, std::string_view word, std::string_view separators) {
  for (std::size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || separators.contains(name[at - 1])) && (end == name.size() || separators.contains(name[end]))) return true;
  }
  return false;
}

// Whether the file belongs to a model without being one.
bool is_companion(const HubFile& file) {
  const std::string name = lower_ascii(base_name(file.path));
  return has_word(name, "mmproj", "-._") || has_word(name, "imatrix", "-._");
}

std::vector<HubFile> with_quant(const std::vector<HubFile>& models, std::string_view quant) {
  // A quant such as q4_0 matches q4_0 rather than q4_0_4_4.
  std::vector<HubFile> found;
  for (const std::string_view separators : {"-.", "-._"}) {
    std::ranges::copy_if(models, std::back_inserter(found), [&](const HubFile& file) {
      return has_word(lower_ascii(base_name(file.path)), lower_ascii(quant), separators);
    });
    if (!found.empty()) break;
  }
  return found;
}

std::string choices(std::vector<HubFile> files) {
  std::ranges::sort(files, {}, &HubFile::path);
  Table table({{""}, {"", Align::right}});
  for (const HubFile& file : files | std::views::take(kChoicesMax))
    table.add({"  " + file.path, file.size ? human_bytes(static_cast<double>(*file.size)) : "?"});
  std::string text = table.text();
  if (files.size() > kChoicesMax) text += std::format("  and {} more\n", files.size() - kChoicesMax);
  text.pop_back();
  return text;
}

}  // namespace

std::string listing_url(std::string_view endpoint, const HubName& name) {
  return std::format("{}/api/models/{}/tree/{}?recursive=true", endpoint, percent_encoded(name.repo, "/"),
                     percent_encoded(name.revision));
}

std::string file_url(std::string_view endpoint, const HubName& name, std::string_view path) {
  return std::format("{}/{}/resolve/{}/{}", endpoint, percent_encoded(name.repo, "/"), percent_encoded(name.revision),
                     percent_encoded(path, "/"));
}

Result<std::vector<HubFile>> parse_listing(std::string_view text) {
  boost::system::error_code problem;
  const boost::json::value listing = boost::json::parse(text, problem);
  if (problem || !listing.is_array()) return fail(ExitCode::protocol, "the hub's list of files is not a JSON array");
  std::vector<HubFile> files;
  for (const boost::json::value& entry : listing.get_array()) {
    if (!entry.is_object() || text_field(entry.get_object(), "type") == "directory") continue;
    const boost::json::object& object = entry.get_object();
    HubFile file{.path = text_field(object, "path"), .size = {}, .sha256 = {}};
    if (file.path.empty()) continue;
    const boost::json::value* size = object.if_contains("size");
    const double bytes = number_field(object, "size");
    if (size != nullptr && size->is_number() && bytes >= 0 && bytes <= kSizeMax) file.size = static_cast<std::uint64_t>(bytes);
    if (auto sum = parse_sha256(text_field(object_field(object, "lfs"), "oid"))) file.sha256 = std::move(*sum);
    files.push_back(std::move(file));
  }
  return files;
}

std::string next_page(std::string_view link_header) {
  while (!link_header.empty()) {
    const std::size_t open = link_header.find('<');
    const std::size_t close = link_header.find('>', open);
    if (open == std::string_view::npos || close == std::string_view::npos) return "";
    const std::size_t end = std::min(link_header.find(',', close), link_header.size());
    const std::string parameters = lower_ascii(link_header.substr(close, end - close));
    if (parameters.contains("rel=\"next\"") || parameters.contains("rel=next"))
      return std::string(link_header.substr(open + 1, close - open - 1));
    link_header.remove_prefix(end);
  }
  return "";
}

Result<HubFile> choose_file(const std::vector<HubFile>& files, const HubName& name) {
  std::vector<HubFile> ggufs;
  std::ranges::copy_if(files, std::back_inserter(ggufs), is_gguf);
  std::vector<HubFile> found;
  if (!name.pick.empty()) {
    const auto is_model = [](const HubFile& file) { return is_gguf(file) || is_safetensors(file); };
    std::ranges::copy_if(files, std::back_inserter(found),
                         [&](const HubFile& file) { return is_model(file) && file.path == name.pick; });
    if (found.empty()) {
      std::ranges::copy_if(files, std::back_inserter(found),
                           [&](const HubFile& file) { return is_model(file) && base_name(file.path) == name.pick; });
    }
    if (found.size() == 1) {
      if (is_split_name(found.front().path)) return refuse_split(found.front().path);
      return found.front();
    }
  }

  std::vector<HubFile> models;
  std::ranges::copy_if(ggufs, std::back_inserter(models),
                       [](const HubFile& file) { return !is_companion(file) && !is_split_name(file.path); });
  std::vector<HubFile> pieces;
  std::ranges::copy_if(ggufs, std::back_inserter(pieces), [](const HubFile& file) { return is_split_name(file.path); });
  if (found.empty()) {
    const bool has_choice = name.pick.empty() && models.size() > 1;
    found = name.pick.empty() && !has_choice ? models : with_quant(models, has_choice ? kPreferred : name.pick);
  }
  if (found.size() == 1) return found.front();
  const std::vector<HubFile> matching_pieces = name.pick.empty() ? pieces : with_quant(pieces, name.pick);
  if (found.empty() && !matching_pieces.empty() && (models.empty() || !name.pick.empty()))
    return refuse_split(matching_pieces.front().path);
  if (models.empty())
    return fail(ExitCode::usage, std::format("{} has no model in GGUF format: name another repository, or a safetensors file "
                                             "of Stable Diffusion by its whole name",
                                             name.repo));
  if (name.pick.empty()) {
    return fail(ExitCode::usage, std::format("{} has several models: choose one with {}:FILE-OR-QUANT\n{}", name.repo,
                                             name.repo, choices(models)));
  }
  return fail(ExitCode::usage, std::format("{} models of {} match \"{}\": choose one of\n{}", found.empty() ? "no" : "several",
                                           name.repo, printable_line(name.pick), choices(found.empty() ? models : found)));
}

}  // namespace uma::cli
