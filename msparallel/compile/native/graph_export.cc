// Writes a compiled graph of MindSpore as JSON lines, with every sub-graph, attribute and constant.
//
// In: the phase of a compilation. Out: a file of JSON lines, and a file with the bytes of constant tensors.
//   {"graph": G, "name": NAME}
//   {"parameter": N, "graph": G, "name": NAME, "value": TYPE, "weight": true where it holds a trained or kept value}
//   {"node": N, "graph": G, "op": PRIMITIVE, "inputs": [INPUT...], "value": TYPE, "attributes": {}, "primal": {},
//    "scope": SCOPE, "name": NAME}                      in an order in which inputs come before what reads them
//   {"return": INPUT, "graph": G}
// INPUT is the number of a node or parameter, or one of {"constant": VALUE}, {"tensor": [DTYPE, SHAPE, OFFSET, BYTES]},
// {"graph": G}, {"primitive": NAME}. A tensor whose elements are all alike has the BYTES of one element.
// A node whose op is "call" has what it calls as its first input.
// TYPE is [DTYPE, SHAPE] of a tensor, {"tuple": [TYPE...]}, {"scalar": DTYPE} or {"other": TEXT}.
//
// MindSpore's own export (`mind_ir`) cannot write some nodes (PyExecute) and copies all weights into the file. The class
// that holds compiled graphs is declared here again, as far as it is used: its header needs Python's and most of
// MindSpore's.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "abstract/abstract_value.h"
#include "ir/anf.h"
#include "ir/func_graph.h"
#include "ir/graph_utils.h"
#include "ir/primitive.h"
#include "ir/scalar.h"
#include "ir/scope.h"
#include "ir/tensor.h"
#include "ir/value.h"

namespace mindspore::pipeline {
class ExecutorPy {
 public:
  FuncGraphPtr GetFuncGraph(const std::string &phase);
};
class GraphExecutorPy : public ExecutorPy {
 public:
  static std::shared_ptr<GraphExecutorPy> executor_;
};
}  // namespace mindspore::pipeline

namespace {
using namespace mindspore;

std::string Quoted(const std::string &text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

// Python's json reads NaN and Infinity by these names.
std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[40];
  std::snprintf(text, sizeof(text), "%.17g", value);
  std::string out = text;
  if (out.find_first_of(".en") == std::string::npos) out += ".0";
  return out;
}

template <typename Items, typename Writer>
std::string List(const Items &items, Writer writer) {
  std::string out = "[";
  for (size_t i = 0; i < items.size(); ++i) out += (i ? "," : "") + writer(items[i]);
  return out + "]";
}

std::string Integers(const ShapeVector &numbers) {
  return List(numbers, [](int64_t number) { return std::to_string(number); });
}

std::string TypeName(const TypePtr &type) { return type == nullptr ? "" : TypeIdToString(type->type_id()); }

std::string TypeOf(const abstract::AbstractBasePtr &value) {
  if (value == nullptr) return "{\"other\":\"unknown\"}";
  if (auto tensor = value->cast<abstract::AbstractTensorPtr>(); tensor != nullptr && tensor->element() != nullptr) {
    return "[" + Quoted(TypeName(tensor->element()->BuildType())) + "," + Integers(tensor->GetShape()->GetShapeVector()) +
           "]";
  }
  if (auto sequence = value->cast<abstract::AbstractSequencePtr>(); sequence != nullptr) {
    return "{\"tuple\":" + List(sequence->elements(), [](const auto &element) { return TypeOf(element); }) + "}";
  }
  if (value->isa<abstract::AbstractScalar>()) return "{\"scalar\":" + Quoted(TypeName(value->BuildType())) + "}";
  return "{\"other\":" + Quoted(value->type_name()) + "}";
}

class Exporter {
 public:
  Exporter(const std::string &lines, const std::string &constants)
      : lines_(lines), constants_(constants, std::ios::binary) {}

  // Graphs are written whole one after the other; those that one refers to follow it.
  bool Write(const FuncGraphPtr &top) {
    GraphNumber(top);
    for (size_t next = 0; next < graphs_.size(); ++next) {
      const FuncGraphPtr graph = graphs_[next];  // the list grows, and moves, while a graph is written
      WriteGraph(graph, next);
    }
    lines_.close();
    constants_.close();
    return !lines_.fail() && !constants_.fail();
  }

 private:
  size_t GraphNumber(const FuncGraphPtr &graph) {
    auto [found, is_new] = graph_numbers_.try_emplace(graph.get(), graphs_.size());
    if (is_new) graphs_.push_back(graph);
    return found->second;
  }

  size_t NodeNumber(const AnfNodePtr &node) {
    return node_numbers_.try_emplace(node.get(), node_numbers_.size()).first->second;
  }

  std::string Value(const ValuePtr &value) {
    if (value == nullptr || value->isa<None>()) return "null";
    if (auto flag = value->cast<BoolImmPtr>()) return flag->value() ? "true" : "false";
    if (auto number = value->cast<Int64ImmPtr>()) return std::to_string(number->value());
    if (auto number = value->cast<Int32ImmPtr>()) return std::to_string(number->value());
    if (auto number = value->cast<UInt32ImmPtr>()) return std::to_string(number->value());
    if (auto number = value->cast<UInt64ImmPtr>()) return std::to_string(number->value());
    if (auto number = value->cast<Int8ImmPtr>()) return std::to_string(number->value());
    if (auto number = value->cast<UInt8ImmPtr>()) return std::to_string(number->value());
    if (auto number = value->cast<FP32ImmPtr>()) return Number(number->value());
    if (auto number = value->cast<FP64ImmPtr>()) return Number(number->value());
    if (auto text = value->cast<StringImmPtr>()) return Quoted(text->value());
    if (auto sequence = value->cast<ValueSequencePtr>()) {
      return List(sequence->value(), [this](const ValuePtr &item) { return Value(item); });
    }
    if (auto pairs = value->cast<ValueDictionaryPtr>()) {
      std::string out = "{";
      for (const auto &[key, item] : pairs->value()) {
        auto name = key->cast<StringImmPtr>();
        out += (out.size() > 1 ? "," : "") + Quoted(name ? name->value() : key->ToString()) + ":" + Value(item);
      }
      return out + "}";
    }
    if (auto type = value->cast<TypePtr>()) return "{\"dtype\":" + Quoted(TypeName(type)) + "}";
    if (value->isa<tensor::Tensor>()) return Tensor(value->cast<tensor::TensorPtr>());
    return "{\"text\":" + Quoted(value->ToString()) + "}";
  }

  std::string Tensor(const tensor::TensorPtr &tensor) {
    const size_t elements = tensor->DataSize();
    const size_t element_bytes = elements == 0 ? 0 : tensor->Size() / elements;
    const auto *data = static_cast<const char *>(tensor->data_c());
    // A tensor of one value only is written as one element.
    const bool uniform = elements > 1 && std::memcmp(data, data + element_bytes, tensor->Size() - element_bytes) == 0;
    const size_t bytes = uniform ? element_bytes : tensor->Size();
    const auto offset = static_cast<size_t>(constants_.tellp());
    if (bytes > 0) constants_.write(data, static_cast<std::streamsize>(bytes));
    return "{\"tensor\":[" + Quoted(TypeIdToString(tensor->data_type())) + "," + Integers(tensor->shape()) + "," +
           std::to_string(offset) + "," + std::to_string(bytes) + "]}";
  }

  std::string Input(const AnfNodePtr &node) {
    auto constant = node->cast<ValueNodePtr>();
    if (constant == nullptr) return std::to_string(NodeNumber(node));
    const auto &value = constant->value();
    if (auto graph = value->cast<FuncGraphPtr>()) return "{\"graph\":" + std::to_string(GraphNumber(graph)) + "}";
    if (auto primitive = value->cast<PrimitivePtr>()) return "{\"primitive\":" + Quoted(primitive->name()) + "}";
    if (value->isa<tensor::Tensor>()) return Tensor(value->cast<tensor::TensorPtr>());
    return "{\"constant\":" + Value(value) + "}";
  }

  template <typename Map>
  std::string Attributes(const Map &attributes) {
    std::string out = "{";
    for (const auto &[name, value] : attributes) {
      out += (out.size() > 1 ? "," : "") + Quoted(name) + ":" + Value(value);
    }
    return out + "}";
  }

  void WriteGraph(const FuncGraphPtr &graph, size_t number) {
    const std::string here = ",\"graph\":" + std::to_string(number);
    lines_ << "{\"graph\":" << number << ",\"name\":" << Quoted(graph->ToString()) << "}\n";
    for (const auto &node : graph->parameters()) {
      auto parameter = node->cast<ParameterPtr>();
      lines_ << "{\"parameter\":" << NodeNumber(node) << here << ",\"name\":" << Quoted(parameter->name())
             << ",\"value\":" << TypeOf(node->abstract())
             << ",\"weight\":" << (parameter->has_default() ? "true" : "false") << "}\n";
    }
    for (const auto &node : TopoSort(graph->get_return())) {
      auto call = node->cast<CNodePtr>();
      if (call == nullptr || call->func_graph() != graph) continue;
      if (call == graph->get_return()) {
        lines_ << "{\"return\":" << Input(call->input(1)) << here << "}\n";
      } else {
        WriteNode(call, here);
      }
    }
  }

  void WriteNode(const CNodePtr &call, const std::string &here) {
    auto primitive = GetValueNode<PrimitivePtr>(call->input(0));
    std::string inputs;
    for (size_t i = primitive == nullptr ? 0 : 1; i < call->size(); ++i) {
      inputs += (inputs.empty() ? "" : ",") + Input(call->input(i));
    }
    lines_ << "{\"node\":" << NodeNumber(call) << here
           << ",\"op\":" << Quoted(primitive == nullptr ? "call" : primitive->name()) << ",\"inputs\":[" << inputs
           << "],\"value\":" << TypeOf(call->abstract());
    if (primitive != nullptr && !primitive->attrs().empty()) {
      lines_ << ",\"attributes\":" << Attributes(primitive->attrs());
    }
    if (!call->primal_attrs().empty()) lines_ << ",\"primal\":" << Attributes(call->primal_attrs());
    lines_ << ",\"scope\":" << Quoted(call->scope() == nullptr ? "" : call->scope()->name())
           << ",\"name\":" << Quoted(call->fullname_with_scope()) << "}\n";
  }

  std::ofstream lines_, constants_;
  std::vector<FuncGraphPtr> graphs_;
  std::unordered_map<const FuncGraph *, size_t> graph_numbers_;
  std::unordered_map<const AnfNode *, size_t> node_numbers_;
};
}  // namespace

// 0: written. 1: no graph of that phase. 2: the files could not be written.
extern "C" int msparallel_export_graph(const char *phase, const char *lines, const char *constants) {
  auto executor = pipeline::GraphExecutorPy::executor_;
  auto graph = executor == nullptr ? nullptr : executor->GetFuncGraph(phase);
  if (graph == nullptr) return 1;
  return Exporter(lines, constants).Write(graph) ? 0 : 2;
}
