// A simulated libnvinfer, for NVIDIA's real Python bindings on a machine without TensorRT and without a GPU.
//
// It opens engines that are lines of text, and its runs copy each input to the output that has its place. It knows the
// entry points that the bindings link, and of three interfaces the places in their tables of functions that opening and
// running an engine takes. Whatever else is called says so and ends the process. Nothing of it computes on a device:
// addresses are those of this process, and streams those of the simulated CUDA runtime library, which has to be loaded.
//
// As TensorRT's documentation has it, the first run of a context after it was told something cannot be captured, and a
// graph gives nothing sensible once its context was told something else; nor does a context run that was given no memory
// to compute in. One to which weights come from elsewhere than the device waits for its run, and cannot be captured.
//
// An engine: "SIMULATED", then "tensor NAME in|out TYPE LOCATION RANK SIZE...", and for each input of each profile
// "profile NUMBER NAME" with the least, the usual and the largest size of each dimension. "weights BYTES" are those that
// can be elsewhere than on the device; without, there are none. "refits KEY" is of one that takes another key, which stands
// for its weights; a graph that brings one is "key KEY". "plugin NAME" is of one that opens where plug-ins are registered.
// "full open|context|run" is of one for which the device has no memory then, which is said in TensorRT's words.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Function = void (*)();

struct Dims {
    int32_t rank;
    int64_t sizes[8];
};

struct Tensor {
    std::string name;
    bool input;
    int32_t type;
    int32_t location;
    Dims shape;
};

using Limits = std::map<std::string, std::vector<Dims>>;

// `weights` bytes of it can be elsewhere; `budget` of those are on the device. Its runs change each byte by `key`, which
// stands for its weights, and which another graph may bring where it `refits`.
struct Engine {
    int64_t weights = 0;
    int64_t budget = 0;
    int contexts = 0;
    bool refits = false;
    int key = 0;
    std::string full;
    std::string text;
    std::vector<Tensor> tensors;
    std::vector<Limits> profiles;
};

// What a pointer of an interface leads to: a table of functions, and the object that is behind it.
struct Object {
    Function* table;
    void* behind;
};

constexpr int SLOTS = 96;
constexpr int32_t NOWHERE = -1;
constexpr int32_t USER_MANAGED = 2;
constexpr int32_t INCLUDE_REFIT = 2;
constexpr int32_t BYTES = 2;

template <int SLOT> [[noreturn]] void unexpected() {
    std::fprintf(stderr, "the simulated libnvinfer has nothing in place %d\n", SLOT);
    std::abort();
}

template <int... SLOT> void fill(Function* table, std::integer_sequence<int, SLOT...>) {
    ((table[SLOT] = &unexpected<SLOT>), ...);
}

template <typename F> void put(Function* table, int slot, F* function) {
    table[slot] = reinterpret_cast<Function>(function);
}

void* logger = nullptr;
bool plugins = false;

// As TensorRT does, it keeps the first one that it was given, and ignores others.
void take_logger(void* given) {
    if (logger == nullptr)
        logger = given;
}

void complain(char const* text) {
    // An interface of the caller: its language, what it is called, two destructors, then what takes a word.
    auto* table = *static_cast<Function**>(logger);
    reinterpret_cast<void (*)(void*, int32_t, char const*)>(table[4])(logger, 1, text);
}

// Whether the device has no memory for this of an engine.
bool is_full(Engine const& engine, char const* what) {
    if (engine.full != what)
        return false;
    complain("1: [defaultAllocator.cpp::nvinfer1::internal::DefaultAllocator::allocate::31] Error Code 1: Cuda Runtime (out of memory)");
    complain("2: [executionContext.cpp::nvinfer1::rt::ExecutionContext::ExecutionContext::470] Error Code 2: OutOfMemory (no further information)");
    return true;
}

void nothing(void*) {}

// What the bindings hold: a destructor that is called when Python lets go of it, and the object behind.
Object* shown(void* behind) {
    static Function table[2] = {};
    put(table, 0, &nothing);
    put(table, 1, &nothing);
    return new Object{table, behind};
}

Function* new_table() {
    auto* table = new Function[SLOTS];
    fill(table, std::make_integer_sequence<int, SLOTS>{});
    return table;
}

// --- contexts

struct Context {
    Function* table;
    Engine const* engine;
    int32_t profile;
    std::map<std::string, Dims> shapes;
    std::map<std::string, char*> addresses;
    std::weak_ptr<Context> self;
    int64_t memory = 0;
    int told = 0;
    int ran = -1;
};

int64_t elements(Dims const& dims) {
    int64_t count = 1;
    for (int32_t i = 0; i < dims.rank; ++i)
        count *= dims.sizes[i];
    return count;
}

int64_t width(int32_t type) {
    static int64_t const widths[] = {4, 2, 1, 4, 1, 1, 1, 2, 8};
    return widths[type];
}

// The input whose place among the inputs an output has among the outputs.
Tensor const& source_of(Engine const& engine, std::string const& output) {
    std::vector<Tensor const*> inputs, outputs;
    for (auto const& tensor : engine.tensors)
        (tensor.input ? inputs : outputs).push_back(&tensor);
    for (size_t i = 0; i < outputs.size(); ++i)
        if (outputs[i]->name == output)
            return *inputs[i % inputs.size()];
    std::abort();
}

bool set_profile(Context* context, int32_t number, void*) {
    bool known = number >= 0 && static_cast<size_t>(number) < context->engine->profiles.size();
    if (known)
        context->profile = number;
    else
        complain("no such profile");
    ++context->told;
    return known;
}

bool set_input_shape(Context* context, char const* name, Dims const& dims) {
    auto const& limits = context->engine->profiles[context->profile].at(name);
    bool held = dims.rank == limits[0].rank;
    for (int32_t i = 0; held && i < dims.rank; ++i)
        held = limits[0].sizes[i] <= dims.sizes[i] && dims.sizes[i] <= limits[2].sizes[i];
    ++context->told;
    if (held)
        context->shapes[name] = dims;
    else
        complain("the shape is outside of the profile");
    return held;
}

Dims context_shape(Context const* context, char const* name) {
    for (auto const& tensor : context->engine->tensors)
        if (tensor.name == name) {
            auto const& source = tensor.input ? tensor : source_of(*context->engine, name);
            auto found = context->shapes.find(source.name);
            return found == context->shapes.end() ? source.shape : found->second;
        }
    return Dims{NOWHERE, {}};
}

bool set_address(Context* context, char const* name, void* address) {
    if (address == nullptr) {
        complain("no address");
        return false;
    }
    ++context->told;
    context->addresses[name] = static_cast<char*>(address);
    return true;
}

void set_memory(Context* context, void* address, int64_t size) {
    ++context->told;
    context->memory = address == nullptr ? 0 : size;
}

int64_t scratch_of(Engine const& engine) { return engine.budget < engine.weights ? 500 : 0; }
int64_t memory_of(Engine const& engine, int32_t profile) { return 1000 + profile + scratch_of(engine); }

// A run, as it was put into a stream.
struct Copies {
    std::weak_ptr<Context> context;
    int told;
    struct Each {
        char* to;
        char* from;
        size_t nbytes;
    };
    std::vector<Each> each;
};

void do_copies(void* about) {
    auto* copies = static_cast<Copies*>(about);
    auto context = copies->context.lock();
    for (auto const& each : copies->each)
        if (context != nullptr && context->told == copies->told)
            for (size_t i = 0; i < each.nbytes; ++i)
                each.to[i] = static_cast<char>(each.from[i] ^ context->engine->key);
        else
            std::memset(each.to, 0xDB, each.nbytes);
}

void drop_copies(void* about) { delete static_cast<Copies*>(about); }

using Put = int (*)(void*, void (*)(void*), void (*)(void*), void*);
using IsCapturing = int (*)(void*);

template <typename F> F of_cuda(char const* name) {
    auto* found = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
    if (found == nullptr) {
        std::fprintf(stderr, "the simulated libnvinfer finds no simulated CUDA runtime library\n");
        std::abort();
    }
    return found;
}

bool run(Context* context, void* stream) {
    if (is_full(*context->engine, "run"))
        return false;
    if (context->memory < memory_of(*context->engine, context->profile)) {
        complain("there is no memory to compute in");
        return false;
    }
    bool capturing = of_cuda<IsCapturing>("simulatedIsCapturing")(stream);
    if (capturing && context->ran != context->told) {
        complain("operation not permitted when stream is capturing");
        return false;
    }
    bool streaming = scratch_of(*context->engine) > 0;
    if (capturing && streaming) {
        of_cuda<IsCapturing>("cudaStreamSynchronize")(stream);
        complain("weights cannot be streamed while the stream is capturing");
        return false;
    }
    auto copies = std::make_unique<Copies>(Copies{context->self, context->told, {}});
    for (auto const& tensor : context->engine->tensors) {
        if (tensor.input)
            continue;
        auto const& source = source_of(*context->engine, tensor.name);
        if (!context->addresses.count(tensor.name) || !context->shapes.count(source.name)) {
            complain("a tensor has no address or no shape");
            return false;
        }
        size_t nbytes = elements(context->shapes[source.name]) * width(tensor.type);
        copies->each.push_back({context->addresses[tensor.name], context->addresses[source.name], nbytes});
    }
    context->ran = context->told;
    int put = of_cuda<Put>("simulatedPut")(stream, &do_copies, &drop_copies, copies.release());
    return put == 0 && (!streaming || of_cuda<IsCapturing>("cudaStreamSynchronize")(stream) == 0);
}

// --- engines

struct Opened {
    Function* table;
    Engine engine;
};

Tensor const& named(Opened const* opened, char const* name) {
    for (auto const& tensor : opened->engine.tensors)
        if (tensor.name == name)
            return tensor;
    std::abort();
}

int32_t profile_count(Opened const* opened) { return static_cast<int32_t>(opened->engine.profiles.size()); }
int32_t tensor_count(Opened const* opened) { return static_cast<int32_t>(opened->engine.tensors.size()); }
char const* tensor_name(Opened const* opened, int32_t i) { return opened->engine.tensors.at(i).name.c_str(); }
Dims tensor_shape(Opened const* opened, char const* name) { return named(opened, name).shape; }
int32_t tensor_type(Opened const* opened, char const* name) { return named(opened, name).type; }
int32_t tensor_location(Opened const* opened, char const* name) { return named(opened, name).location; }
int32_t tensor_mode(Opened const* opened, char const* name) { return named(opened, name).input ? 1 : 2; }
bool learns_shapes(Opened const*, char const*) { return false; }
int64_t context_memory(Opened const* opened, int32_t profile) { return memory_of(opened->engine, profile); }
int64_t streamable(Opened const* opened) { return opened->engine.weights; }
int64_t weight_budget(Opened const* opened) { return opened->engine.budget; }

bool set_weight_budget(Opened* opened, int64_t bytes) {
    auto& engine = opened->engine;
    if (engine.weights == 0 || engine.contexts > 0)
        complain(engine.contexts > 0 ? "there are active contexts" : "this engine does not stream weights");
    else
        engine.budget = bytes < engine.weights ? bytes : engine.weights;
    return engine.weights > 0 && engine.contexts == 0;
}

Dims profile_shape(Opened const* opened, char const* name, int32_t number, int32_t which) {
    return opened->engine.profiles.at(number).at(name).at(which);
}

void* new_context(Opened* opened, int32_t strategy) {
    if (is_full(opened->engine, "context"))
        return nullptr;
    ++opened->engine.contexts;
    if (strategy != USER_MANAGED) {
        complain("contexts that have memory of their own are not simulated");
        return nullptr;
    }
    static Function* table = [] {
        auto* made = new_table();
        put(made, 16, &set_profile);
        put(made, 20, &set_input_shape);
        put(made, 21, &context_shape);
        put(made, 23, &set_address);
        put(made, 36, &run);
        put(made, 48, &set_memory);
        return made;
    }();
    // Nobody gives contexts back: the destructor of what the bindings hold does nothing.
    auto* held = new std::shared_ptr<Context>(new Context{table, &opened->engine, 0, {}, {}, {}, 0, 0, -1});
    (*held)->self = *held;
    return shown(held->get());
}

bool read_engine(std::string const& text, Engine& engine) {
    std::istringstream lines(text);
    std::string line, word;
    engine.text = text;
    if (!std::getline(lines, line) || line != "SIMULATED")
        return false;
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        words >> word;
        if (word == "tensor") {
            Tensor tensor{};
            std::string way;
            words >> tensor.name >> way >> tensor.type >> tensor.location >> tensor.shape.rank;
            tensor.input = way == "in";
            for (int32_t i = 0; i < tensor.shape.rank; ++i)
                words >> tensor.shape.sizes[i];
            engine.tensors.push_back(tensor);
        } else if (word == "weights") {
            words >> engine.weights;
            engine.budget = engine.weights;
        } else if (word == "full") {
            words >> engine.full;
        } else if (word == "refits") {
            engine.refits = true;
            words >> engine.key;
        } else if (word == "profile") {
            size_t number = 0;
            std::string name;
            words >> number >> name;
            engine.profiles.resize(std::max(engine.profiles.size(), number + 1));
            for (int which = 0; which < 3; ++which) {
                Dims dims{};
                for (auto const& tensor : engine.tensors)
                    if (tensor.name == name)
                        dims.rank = tensor.shape.rank;
                for (int32_t i = 0; i < dims.rank; ++i)
                    words >> dims.sizes[i];
                engine.profiles[number][name].push_back(dims);
            }
        }
    }
    return !engine.tensors.empty();
}

// --- other weights

struct HostMemory {
    Function* table;
    std::string text;
};

void const* host_data(HostMemory const* memory) { return memory->text.data(); }
size_t host_size(HostMemory const* memory) { return memory->text.size(); }

int32_t host_type(HostMemory const*) { return BYTES; }

struct SerializationConfig {
    Function* table;
    uint32_t flags = 0;
};

bool set_serialization_flag(SerializationConfig* config, int32_t flag) {
    config->flags |= 1u << flag;
    return true;
}

void* new_serialization_config(Opened const*) {
    static Function* table = [] {
        auto* made = new_table();
        put(made, 5, &set_serialization_flag);
        return made;
    }();
    return shown(new SerializationConfig{table});
}

// Without the flag that it is to take other weights again, it takes none.
void* serialize(Opened const* opened, void* shown_config) {
    static Function* table = [] {
        auto* made = new_table();
        put(made, 2, &host_data);
        put(made, 3, &host_size);
        put(made, 4, &host_type);
        return made;
    }();
    auto const* config = static_cast<SerializationConfig*>(static_cast<Object*>(shown_config)->behind);
    std::istringstream lines(opened->engine.text);
    std::string text, line;
    while (std::getline(lines, line))
        if (line.rfind("refits ", 0) != 0)
            text += line + "\n";
    if (config->flags & (1u << INCLUDE_REFIT))
        text += "refits " + std::to_string(opened->engine.key) + "\n";
    return shown(new HostMemory{table, text});
}

struct Refitter {
    Function* table;
    Opened* opened;
    int key = -1;
};

bool refit_engine(Refitter* refitter) {
    if (refitter->key < 0 || refitter->opened->engine.contexts > 0) {
        complain("some weights are missing");
        return false;
    }
    refitter->opened->engine.key = refitter->key;
    return true;
}

// An interface whose table of functions the bindings call themselves.
struct ParserRefitter {
    Function* table;
    Refitter* refitter;
};

bool refit_from_bytes(ParserRefitter* parser, void const* graph, size_t size, char const*) {
    std::istringstream words(std::string(static_cast<char const*>(graph), size));
    std::string word;
    words >> word >> parser->refitter->key;
    if (word == "key" && words)
        return true;
    complain("the graph is another one");
    return false;
}

int32_t no_errors(ParserRefitter const*) { return 0; }

// --- the runtime

struct Runtime {
    Function* table;
};

void allow_host_code(Runtime*, bool) {}

void* open_engine(Runtime*, void const* data, size_t size) {
    static Function* table = [] {
        auto* made = new_table();
        put(made, 5, &new_context);
        put(made, 8, &profile_count);
        put(made, 15, &tensor_shape);
        put(made, 16, &tensor_type);
        put(made, 17, &tensor_location);
        put(made, 18, &learns_shapes);
        put(made, 19, &tensor_mode);
        put(made, 25, &profile_shape);
        put(made, 26, &tensor_count);
        put(made, 27, &tensor_name);
        put(made, 35, &new_serialization_config);
        put(made, 36, &serialize);
        put(made, 38, &streamable);
        put(made, 40, &set_weight_budget);
        put(made, 41, &weight_budget);
        put(made, 45, &context_memory);
        return made;
    }();
    auto* opened = new Opened{table, {}};
    if (!plugins && std::string(static_cast<char const*>(data), size).find("plugin ") != std::string::npos) {
        complain("there is no creator of a plug-in in the registry");
        delete opened;
        return nullptr;
    }
    bool read = read_engine(std::string(static_cast<char const*>(data), size), opened->engine);
    if (read && !is_full(opened->engine, "open"))
        return shown(opened);
    if (!read)
        complain("the magic number does not match");
    delete opened;
    return nullptr;
}

} // namespace

extern "C" {

void* createInferRuntime_INTERNAL(void* words, int32_t) {
    static Function* table = [] {
        auto* made = new_table();
        put(made, 3, &open_engine);
        put(made, 20, &allow_host_code);
        return made;
    }();
    take_logger(words);
    return shown(new Runtime{table});
}

void* createInferBuilder_INTERNAL(void*, int32_t) { return nullptr; }
void* createInferRefitter_INTERNAL(void* engine, void* words, int32_t) {
    static Function* table = [] {
        auto* made = new_table();
        put(made, 4, &refit_engine);
        return made;
    }();
    take_logger(words);
    auto* opened = static_cast<Opened*>(static_cast<Object*>(engine)->behind);
    if (opened->engine.refits)
        return shown(new Refitter{table, opened});
    complain("the engine was not built to be refitted");
    return nullptr;
}
void* createNvOnnxParser_INTERNAL(void*, void*, int32_t) { return nullptr; }
void* createNvOnnxParserRefitter_INTERNAL(void* refitter, void* words, int32_t) {
    static Function* table = [] {
        auto* made = new_table();
        put(made, 0, &refit_from_bytes);
        put(made, 2, &no_errors);
        put(made, 5, &nothing);
        put(made, 6, &nothing);
        return made;
    }();
    take_logger(words);
    return new ParserRefitter{table, static_cast<Refitter*>(static_cast<Object*>(refitter)->behind)};
}
void* getBuilderPluginRegistry(int32_t) { return nullptr; }
void* getPluginRegistry() { return nullptr; }
int32_t getNvOnnxParserVersion() { return 0; }
bool initLibNvInferPlugins(void* words, char const*) {
    take_logger(words);
    plugins = true;
    return true;
}
}
