#pragma once

// Where an output is made before it appears: a hidden folder beside OUT, renamed to OUT in one step
// at the end.

#include <filesystem>

#include "base/file.h"
#include "base/handle.h"

namespace quantmill {

// Owned by rank 0 of a job; other ranks only use the path. Dropped without commit() it removes
// everything it made.
class WorkFolder {
 public:
  // Takes the lock and makes an empty folder. What a job that was killed left there is removed
  // first. Errors: kUsage: OUT exists and `overwrite` is not set, OUT is inside one of `sources` or
  // contains one; another job is at work on the same OUT. kIo: OUT's parent does not exist or can't
  // be written.
  WorkFolder(const std::filesystem::path& out, bool overwrite, const std::filesystem::path& source);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  // Where the job writes. A function of OUT alone.
  static std::filesystem::path path_for(const std::filesystem::path& out);

  // Syncs the folder, makes OUT appear by a rename (by exchange with an existing OUT, which is then
  // removed), syncs OUT's parent.
  void commit();

 private:
  std::filesystem::path out_;
  std::filesystem::path path_;
  UniqueHandle<DescriptorTraits> lock_;
  bool committed_ = false;
};

}  // namespace quantmill
