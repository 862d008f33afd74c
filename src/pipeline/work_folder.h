#pragma once

// Where an output is made before it appears: a hidden folder beside OUT with the journal of the
// job, the job's fingerprint and, in "output", the checkpoint, which is renamed to OUT in one step
// at the end.

#include <filesystem>
#include <optional>

#include "pipeline/fingerprint.h"
#include "pipeline/output_lock.h"

namespace quantmill {

// What to do with an unfinished job of the same OUT.
enum class StartMode {
  kStart,    // refuse, if it has done anything that would be lost
  kResume,   // go on with it; without one, start
  kRestart,  // throw it away
};

enum class WorkState {
  kFresh,
  kResumed,
  kFinished,  // kResume only: OUT is there and is what this job makes
};

struct WorkRequest {
  std::filesystem::path out;
  std::filesystem::path source;
  Fingerprint inputs;        // make_fingerprint
  Fingerprint timed_inputs;  // with_times
  StartMode mode = StartMode::kStart;
  bool overwrite = false;
};

// kUsage: OUT exists and may not be replaced or resumed, or OUT and the source lie inside each
// other. kIo: OUT's parent does not exist. Looks only: a job can still be refused for what happens
// later.
void check_output_place(const std::filesystem::path& out,
                        const std::filesystem::path& source,
                        bool may_exist);

// Owned by rank 0 of a job; other ranks only use the paths. Dropped without commit() or keep() it
// removes all it made.
class WorkFolder {
 public:
  // Takes the lock and makes or takes over the folder.
  // Errors: kUsage: OUT exists and `overwrite` is not set; OUT and the source lie inside each
  // other; another job is at work on the same OUT; an unfinished job is in the way (kStart) or is
  // of other inputs (kResume: names the first). kIo: OUT's parent does not exist or can't be
  // written.
  explicit WorkFolder(const WorkRequest& request);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  [[nodiscard]] WorkState state() const noexcept { return state_; }

  // Functions of OUT alone.
  static std::filesystem::path journal_folder(const std::filesystem::path& out);
  static std::filesystem::path output_folder(const std::filesystem::path& out);

  // From now on the folder stays when the job fails: it can be resumed.
  void keep() noexcept { kept_ = true; }

  // Syncs the output's folders, makes OUT appear by a rename (in exchange with an existing OUT,
  // which is then removed), syncs OUT's parent and removes the rest. kIo; also if OUT is there, but
  // was not to be replaced.
  void commit();

 private:
  // Whether OUT is there and is the result of these inputs; kUsage if it is there and may not be
  // replaced.
  [[nodiscard]] bool is_finished(const WorkRequest& request) const;
  // Whether the folder holds a job to go on with.
  [[nodiscard]] bool can_resume(const WorkRequest& request) const;
  // Makes an empty work folder with the fingerprint of the inputs.
  void make_folder(const Fingerprint& timed_inputs) const;
  // The rename of commit(), and its ways where the file system has neither exchange nor "only if
  // there is none", as NFS.
  void rename_to_out() const;
  void rename_by_steps() const;
  void check_replaceable() const;
  // Puts back an OUT that rename_by_steps set aside when its process was killed.
  void restore_replaced() const;

  std::filesystem::path out_;
  std::filesystem::path path_;
  bool overwrite_;
  std::optional<OutputLock> lock_;
  WorkState state_ = WorkState::kFresh;
  bool kept_ = false;
};

}  // namespace quantmill
