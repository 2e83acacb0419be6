// A device target "Ascend" for MindSpore's front end that has no devices behind it.
//
// In: the environment variables RANK_ID and RANK_SIZE, and the groups that MindSpore creates. Out: MindSpore believes in
// an Ascend job of RANK_SIZE devices and answers every question about groups, so that strategies, layouts, collectives,
// pipeline and optimizer shard are all worked out. Nothing can be executed: the front end must be told to stop before
// the backend (MS_DEV_PRECOMPILE_ONLY=1).
//
// Two registration points make this possible; MindSpore exports both and declares them in the headers of its wheel:
// MsContext::RegisterInitFunc (core/include/utils/ms_context.h) and CommManager::Register (ccsrc/include/utils/
// comm_manager.h). They are declared here again, as far as they are used: the headers pull in most of MindSpore.

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace mindspore {
class MsContext {
 public:
  using Init = void (*)(MsContext *);
  static void RegisterInitFunc(const std::string &name, Init init);
};

class CommManager {
 public:
  static bool Register(const std::string &name, const std::shared_ptr<CommManager> &instance);
  CommManager(const CommManager &) = delete;
  virtual ~CommManager() = default;
  virtual bool CreateGroupSync(const std::string &group, const std::vector<unsigned int> &ranks) const = 0;
  virtual bool DestroyGroup(const std::string &group) const = 0;
  virtual bool GetRankID(const std::string &group, unsigned int *rank) const = 0;
  virtual bool GetRankSize(const std::string &group, unsigned int *size) const = 0;
  virtual uint32_t GetRank() = 0;

 protected:
  explicit CommManager(std::string backend) : backend_(std::move(backend)) {}
  std::string backend_;
};
}  // namespace mindspore

namespace {
unsigned FromEnvironment(const char *name, unsigned otherwise) {
  const char *text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

unsigned OwnRank() { return FromEnvironment("RANK_ID", 0); }

class SimulatedGroups : public mindspore::CommManager {
 public:
  SimulatedGroups() : CommManager("hccl") {}

  bool CreateGroupSync(const std::string &name, const std::vector<unsigned> &ranks) const override {
    groups_[name] = ranks;
    return true;
  }

  bool DestroyGroup(const std::string &name) const override { return groups_.erase(name) > 0; }

  // A group that was never created is the world.
  bool GetRankID(const std::string &name, unsigned *rank) const override {
    *rank = OwnRank();
    auto group = groups_.find(name);
    if (group == groups_.end()) return true;
    for (unsigned place = 0; place < group->second.size(); ++place) {
      if (group->second[place] == OwnRank()) *rank = place;
    }
    return true;
  }

  bool GetRankSize(const std::string &name, unsigned *size) const override {
    auto group = groups_.find(name);
    *size = group == groups_.end() ? FromEnvironment("RANK_SIZE", 1) : static_cast<unsigned>(group->second.size());
    return true;
  }

  uint32_t GetRank() override { return OwnRank(); }

 private:
  mutable std::map<std::string, std::vector<unsigned>> groups_;
};

std::shared_ptr<SimulatedGroups> groups;
void NothingToPrepare(mindspore::MsContext *) {}
}  // namespace

extern "C" {
void msparallel_register_groups() {
  groups = std::make_shared<SimulatedGroups>();
  mindspore::CommManager::Register("Ascend", groups);
}

void msparallel_register_target() { mindspore::MsContext::RegisterInitFunc("Ascend", NothingToPrepare); }

unsigned msparallel_group_size(const char *name) {
  unsigned size = 0;
  groups->GetRankSize(name, &size);
  return size;
}

unsigned msparallel_group_rank(const char *name) {
  unsigned rank = 0;
  groups->GetRankID(name, &rank);
  return rank;
}

void msparallel_create_group(const char *name, int size, const unsigned *ranks) {
  groups->CreateGroupSync(name, std::vector<unsigned>(ranks, ranks + size));
}
}
