#include "umad/open_catalog.h"

#include <string>
#include <utility>

#include "base/move_only_function.h"
#include "image/message_images.h"
#include "kv/catalog/postgres_catalog.h"
#include "kv/catalog/postgres_images.h"
#include "kv/catalog/sqlite_catalog.h"
#include "umad/check.h"
#include "umad/data_dir.h"
#include "umad/shared_store.h"

namespace uma::umad {
namespace {

Expected<OpenedCatalog> open_shared_catalog(const Config& config, const Models& models, const std::string& file,
                                            const std::string& images_folder) {
  const std::string node = node_of(config);
  const auto database = std::make_shared<kv::PostgresImages>(
      kv::PostgresImagesOptions{.address = config.catalog, .node = node, .bytes_max = config.vision_kept_bytes_max});
  auto images =
      std::make_shared<image::KeptImages>(images_folder, config.vision_kept_bytes_max,
                                          [database](const std::string& id, MoveOnlyFunction<void(Expected<Bytes>)> done) {
                                            database->fetch(id, std::move(done));
                                          });
  auto catalog = kv::PostgresCatalog::open(
      {.address = config.catalog,
       .node = node,
       .version = UMA_VERSION,
       .models = models_text(compared_models(models)),
       .shared_states = shared_states_text(config),
       .lock = file,
       .tenant_sessions_max = config.limits.tenant_sessions_max,
       .images = {.database = database, .ids_of = image::image_files, .read = [images](const std::string& id) {
                    return images->read_here(id);
                  }}});
  if (!catalog) return std::unexpected(catalog.error());
  return OpenedCatalog{.catalog = std::move(*catalog), .images = std::move(images)};
}

}  // namespace

Expected<OpenedCatalog> open_catalog(const Config& config, const Models& models) {
  const std::string file = config.data_dir + "/catalog.db";
  const std::string images_folder = config.data_dir + "/images";
  if (!config.catalog.empty()) return open_shared_catalog(config, models, file, images_folder);
  auto catalog = kv::SqliteCatalog::open(file);
  if (!catalog) return std::unexpected(catalog.error());
  return OpenedCatalog{.catalog = std::move(*catalog),
                       .images = std::make_shared<image::KeptImages>(images_folder, config.vision_kept_bytes_max)};
}

}  // namespace uma::umad
