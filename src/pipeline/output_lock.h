#pragma once

// One job at a time writes an output: an flock on a file beside it. The kernel drops it with its
// owner, however that ends, on this host or another (where the file system passes locks on, as NFS
// 4 does).

#include <filesystem>

#include "base/file.h"
#include "base/handle.h"

namespace quantmill {

class OutputLock {
 public:
  // Takes the lock ".NAME.quantmill-lock" beside `out`, waiting a few seconds for an owner that is
  // on its way out. Errors: kUsage: another job has it; kIo.
  explicit OutputLock(const std::filesystem::path& out);
  // Removes the file and drops the lock.
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  std::filesystem::path path_;
  UniqueHandle<DescriptorTraits> descriptor_;
};

}  // namespace quantmill
