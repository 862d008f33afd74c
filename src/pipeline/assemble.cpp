#include "pipeline/assemble.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/layout.h"
#include "pipeline/run_record.h"

namespace quantmill {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kConfigName = "config.json";

// Files that this job writes itself: a copy of the source's would be wrong.
bool is_written_here(const std::string& name, const Plan& plan) {
  return std::ranges::find(plan.beside, name, &TextFile::name) != plan.beside.end() ||
         name == kConfigName || name == kIndexName || name == kManifestName ||
         name == kScalesName || name == kRunRecordName;
}

// What a job that was killed left in the folder: temporary files of writes that it did not finish.
void remove_strays(const std::filesystem::path& folder, const std::vector<ManifestFile>& files) {
  for (const std::filesystem::path& name : list_files(folder)) {
    if (std::ranges::find(files, name.string(), &ManifestFile::name) == files.end()) {
      std::filesystem::remove(folder / name);
    }
  }
}

}  // namespace

void assemble(const Log& log,
              const Checkpoint& checkpoint,
              const Plan& plan,
              const Fingerprint& inputs,
              const ScaleTable& scales,
              const WrittenShards& shards,
              const std::filesystem::path& folder) {
  std::vector<ManifestFile> files = shards.files;
  const auto add = [&](const std::string& name) {
    files.push_back({name, std::filesystem::file_size(folder / name), hash_file(folder / name)});
  };
  if (plan.shards.size() > 1) {
    write_text_file(folder / kIndexName, print_index(plan.shards));
    add(kIndexName);
  }
  write_text_file(folder / kConfigName, plan.config);
  add(kConfigName);
  for (const TextFile& file : plan.beside) {
    write_text_file(folder / file.name, file.text);
    add(file.name);
  }
  for (const std::filesystem::path& name : checkpoint.other_files()) {
    if (is_written_here(name.string(), plan)) {
      continue;
    }
    std::filesystem::create_directories((folder / name).parent_path());
    copy_file_synced(checkpoint.folder() / name, folder / name);
    add(name.string());
  }
  std::string left_behind;
  for (const std::filesystem::path& name : checkpoint.ignored_files()) {
    left_behind += (left_behind.empty() ? "" : ", ") + name.string();
  }
  if (!left_behind.empty()) {
    log.warn(
        fmt::format("left behind, since they hold weights that are not part of this checkpoint: {}",
                    left_behind));
  }
  add(kScalesName);
  remove_strays(folder, files);
  std::ranges::sort(files, {}, &ManifestFile::name);
  write_text_file(folder / kManifestName,
                  print_manifest(checkpoint, plan, inputs, scales, files, shards.tensors));
}

}  // namespace quantmill
