"""Tiny models of random weights, one or more for each family, of transformers' own classes.

Small, but nothing is special: several query heads per key-value head, more than one expert per token, every bias, norm
weight and gate random. Sizes differ from each other wherever a class lets them, so that a wrong shape or a wrong order
of rows is seen. The layers are as many as it takes to have each kind of layer that the family knows.
"""

import torch
import transformers
from safetensors.torch import load_file, save_file

VOCABULARY = 96
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": False}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}

# Sizes that most classes take. 6 query heads for 2 key-value heads, of a size that is not hidden / heads.
DENSE = dict(vocab_size=VOCABULARY, hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, head_dim=32, max_position_embeddings=128, pad_token_id=0, bos_token_id=1,
             eos_token_id=2, tie_word_embeddings=False)
MLA = dict(q_lora_rank=64, kv_lora_rank=96, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16,
           num_attention_heads=6, num_key_value_heads=6)
DEEPSEEK = DENSE | MLA | dict(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=64,
                              first_k_dense_replace=1, n_group=2, topk_group=1, num_hidden_layers=3)
DEEPSEEK.pop("head_dim")
INDEXER = dict(index_n_heads=4, index_head_dim=32, index_topk=4)
MOE = DENSE | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
HYBRID = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=24,
              linear_conv_kernel_dim=4, rms_norm_eps=1e-2)
LAYERS_LINEAR = ["linear_attention", "full_attention", "linear_attention"]
GEMMA_LAYERS = ["sliding_attention", "full_attention"]
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=16,
              patch_size=8, num_channels=3)
QWEN_VISION = dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=96, patch_size=8,
                   spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=16)


def text(**keys):
    return {"text_config": keys}


# Name of the case -> (class, configuration). A family has several where its checkpoints differ in what they hold.
CASES = {
    "llama": ("LlamaForCausalLM", DENSE | dict(attention_bias=True, mlp_bias=True)),
    "llama-tied": ("LlamaForCausalLM", DENSE | dict(tie_word_embeddings=True)),
    "mistral": ("MistralForCausalLM", DENSE | dict(sliding_window=8)),
    "ministral3": ("Ministral3ForCausalLM", DENSE),
    "mixtral": ("MixtralForCausalLM", DENSE | dict(num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": ("Qwen2ForCausalLM", DENSE),
    "qwen2-moe": ("Qwen2MoeForCausalLM", MOE | dict(shared_expert_intermediate_size=128, mlp_only_layers=[1],
                                                    num_hidden_layers=3, qkv_bias=True)),
    "qwen3": ("Qwen3ForCausalLM", DENSE | dict(attention_bias=True)),
    "qwen3-moe": ("Qwen3MoeForCausalLM", MOE | dict(mlp_only_layers=[1], num_hidden_layers=3)),
    "qwen3-next": ("Qwen3NextForCausalLM", MOE | HYBRID | dict(shared_expert_intermediate_size=128, mlp_only_layers=[2],
                                                               layer_types=LAYERS_LINEAR, num_hidden_layers=3)),
    "qwen3.5": ("Qwen3_5ForCausalLM", DENSE | HYBRID | dict(layer_types=LAYERS_LINEAR, num_hidden_layers=3)),
    "qwen3.5-moe": ("Qwen3_5MoeForCausalLM", MOE | HYBRID | dict(shared_expert_intermediate_size=128,
                                                                 layer_types=LAYERS_LINEAR, num_hidden_layers=3)),
    "qwen3.5-vl": ("Qwen3_5ForConditionalGeneration",
                   text(**DENSE | HYBRID | dict(layer_types=LAYERS_LINEAR, num_hidden_layers=3))
                   | {"vision_config": QWEN_VISION, "tie_word_embeddings": False}),
    "qwen3.5-moe-vl": ("Qwen3_5MoeForConditionalGeneration",
                       text(**MOE | HYBRID | dict(shared_expert_intermediate_size=128, layer_types=LAYERS_LINEAR,
                                                  num_hidden_layers=3))
                       | {"vision_config": QWEN_VISION, "tie_word_embeddings": False}),
    "qwen3-vl": ("Qwen3VLForConditionalGeneration",
                 text(**DENSE) | {"vision_config": QWEN_VISION | {"deepstack_visual_indexes": [0]},
                                  "tie_word_embeddings": False}),
    "qwen3-vl-moe": ("Qwen3VLMoeForConditionalGeneration",
                     text(**MOE) | {"vision_config": QWEN_VISION | {"deepstack_visual_indexes": [0]},
                                    "tie_word_embeddings": False}),
    "qwen2.5-vl": ("Qwen2_5_VLForConditionalGeneration",
                   text(**DENSE | {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                                       "mrope_section": [2, 3, 3]}})
                   | {"vision_config": QWEN_VISION | dict(fullatt_block_indexes=[0], window_size=16),
                      "tie_word_embeddings": False}),
    "deepseek-v2": ("DeepseekV2ForCausalLM", DEEPSEEK | dict(topk_method="group_limited_greedy")),
    "deepseek-v2-lite": ("DeepseekV2ForCausalLM", DEEPSEEK | dict(q_lora_rank=None, topk_method="greedy")),
    "deepseek-v3": ("DeepseekV3ForCausalLM", DEEPSEEK | dict(attention_bias=True)),
    "deepseek-v3.2": ("DeepseekV32ForCausalLM", DEEPSEEK | INDEXER),
    "kimi-k2.5": ("Kimi_K25ForConditionalGeneration",
                  text(model_type="deepseek_v3", **DEEPSEEK)
                  | {"vision_config": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                                           num_attention_heads=2), "tie_word_embeddings": False}),
    "glm-4.7-flash": ("Glm4MoeLiteForCausalLM", DEEPSEEK),
    "glm-5": ("GlmMoeDsaForCausalLM", DEEPSEEK | INDEXER),
    "gemma2": ("Gemma2ForCausalLM", DENSE | dict(query_pre_attn_scalar=32, sliding_window=8, layer_types=GEMMA_LAYERS)),
    "gemma3": ("Gemma3ForCausalLM", DENSE | dict(query_pre_attn_scalar=32, sliding_window=8, layer_types=GEMMA_LAYERS)),
    "gemma3-vl": ("Gemma3ForConditionalGeneration",
                  text(**DENSE | dict(query_pre_attn_scalar=32, sliding_window=8, layer_types=GEMMA_LAYERS))
                  | {"vision_config": VISION, "mm_tokens_per_image": 4, "tie_word_embeddings": False}),
    "gemma4": ("Gemma4ForCausalLM",
               DENSE | dict(num_hidden_layers=6, num_kv_shared_layers=2, layer_types=GEMMA_LAYERS * 3, sliding_window=8,
                            global_head_dim=64, num_global_key_value_heads=1, hidden_size_per_layer_input=16,
                            vocab_size_per_layer_input=VOCABULARY, use_double_wide_mlp=True)),
    "gemma4-moe": ("Gemma4ForCausalLM",
                   DENSE | dict(num_hidden_layers=4, layer_types=GEMMA_LAYERS * 2, sliding_window=8, global_head_dim=64,
                                num_global_key_value_heads=1, attention_k_eq_v=True, enable_moe_block=True,
                                num_experts=4, top_k_experts=2, moe_intermediate_size=64, num_kv_shared_layers=0,
                                hidden_size_per_layer_input=0)),
    "gemma4-vl": ("Gemma4ForConditionalGeneration",
                  text(**DENSE | dict(num_hidden_layers=2, num_kv_shared_layers=0, layer_types=GEMMA_LAYERS,
                                      sliding_window=8, global_head_dim=64, hidden_size_per_layer_input=0))
                  | {"vision_config": VISION | {"head_dim": 16, "num_key_value_heads": 2},
                     "audio_config": dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                          output_proj_dims=48, subsampling_conv_channels=[8, 4]),
                     "tie_word_embeddings": False}),
    "phi3": ("Phi3ForCausalLM", {key: value for key, value in DENSE.items() if key != "head_dim"}),
    "glm4": ("Glm4ForCausalLM", DENSE | dict(attention_bias=True)),
    "glm": ("GlmForCausalLM", DENSE | dict(attention_bias=True)),
    "glm4-moe": ("Glm4MoeForCausalLM",
                 DENSE | dict(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=64,
                              first_k_dense_replace=1, n_group=1, topk_group=1, num_hidden_layers=3, use_qk_norm=True,
                              attention_bias=True)),
    "glm4.5v": ("Glm4vMoeForConditionalGeneration",
                text(**DENSE | dict(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
                                    moe_intermediate_size=64, first_k_dense_replace=1, n_group=1, topk_group=1,
                                    num_hidden_layers=2, attention_bias=True,
                                    rope_parameters=ROPE | {"mrope_section": [2, 3, 3]}))
                | {"vision_config": dict(depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=96,
                                         patch_size=8, image_size=32), "tie_word_embeddings": False}),
    "gpt-oss": ("GptOssForCausalLM", DENSE | dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
                                                  layer_types=GEMMA_LAYERS,
                                                  rope_parameters=ROPE | YARN)),
    "cohere": ("CohereForCausalLM", {key: value for key, value in DENSE.items() if key != "head_dim"}
               | dict(use_qk_norm=True, attention_bias=True)),
    "cohere2": ("Cohere2ForCausalLM", DENSE | dict(sliding_window=8, layer_types=GEMMA_LAYERS)),
    "llama4": ("Llama4ForCausalLM",
               DENSE | dict(intermediate_size=64, intermediate_size_mlp=160, num_local_experts=4, num_experts_per_tok=1,
                            moe_layers=[0, 2], num_hidden_layers=4, attention_chunk_size=8,
                            no_rope_layers=[1, 1, 1, 0])),
    "llama4-vl": ("Llama4ForConditionalGeneration",
                  text(**DENSE | dict(intermediate_size=64, intermediate_size_mlp=160, num_local_experts=4,
                                      moe_layers=[0], num_hidden_layers=2, attention_chunk_size=8))
                  | {"vision_config": dict(hidden_size=32, intermediate_size=128, num_hidden_layers=1,
                                           num_attention_heads=2, image_size=16, patch_size=8, vision_output_dim=48,
                                           projector_input_dim=48, projector_output_dim=48),
                     "tie_word_embeddings": False}),
    "olmo2": ("Olmo2ForCausalLM", {key: value for key, value in DENSE.items() if key != "head_dim"}),
    "olmo3": ("Olmo3ForCausalLM", {key: value for key, value in DENSE.items() if key != "head_dim"}
              | dict(sliding_window=8, layer_types=GEMMA_LAYERS)),
    "mistral3-vl": ("Mistral3ForConditionalGeneration",
                    text(model_type="mistral", **DENSE)
                    | {"vision_config": VISION | {"model_type": "pixtral", "head_dim": 16},
                       "tie_word_embeddings": False}),
}


MTP = {"mtp.fc.weight": (96, 192), "mtp.norm.weight": (96,), "mtp.pre_fc_norm_embedding.weight": (96,),
       "mtp.pre_fc_norm_hidden.weight": (96,), "mtp.layers.0.input_layernorm.weight": (96,),
       "mtp.layers.0.self_attn.v_proj.weight": (64, 96)}

# Checkpoints whose tensors are not as save_pretrained writes them, but as releases have them.
STACKED = ("qwen2-moe-stacked", "qwen3.5-moe-stacked", "deepseek-v3-stacked", "glm4-moe-stacked")

# Where the class reads experts as one tensor only.
READ_STACKED = ("gemma4-moe", "gpt-oss", "llama4", "llama4-vl", "qwen3-vl-moe")


def randomize(model, generator):
    """Every parameter and stored buffer random, around the value at which it does least."""
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm" not in name and tensor.dim() > 1:
                tensor.copy_(noise / tensor.shape[-1] ** 0.5)
            elif "correction_bias" in name:
                tensor.copy_(0.1 * noise)  # small beside the scores, so that every expert is chosen by some tokens
            else:
                neutral = float(tensor.float().mean())  # 1 or 0
                if "q_norm" in name and neutral == 1:
                    neutral = 0.25  # queries of norm 1 make some softmax so sharp that it magnifies rounding
                tensor.copy_((neutral if abs(neutral) < 4 else 0.0) + 0.3 * noise)


def random_model(cls, keys, seed=5, **options):
    """A model of the class with these configuration keys in float32, the same one in every process: the class's own values,
    whose mean `randomize` keeps, are random too."""
    torch.manual_seed(seed)
    model = cls._from_config(cls.config_class(**keys), **options).float().eval()
    randomize(model, torch.Generator().manual_seed(seed))
    return model


def build(case):
    """The case's model in float32, computed eagerly."""
    name, keys = CASES[case.removesuffix("-stacked")]
    model = random_model(getattr(transformers, name), keys, attn_implementation="eager")
    model.set_experts_implementation("eager")
    return model


def save(case, model, folder):
    """The model's checkpoint in `folder`, spelled as the family's releases are."""
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    if case in STACKED:
        tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    elif case == "kimi-k2.5":  # transformers 5.17 also renames the language model's layers when it saves
        tensors = {name.replace("language_model.model.blocks.", "language_model.model.layers."): tensor
                   for name, tensor in load_file(path).items()}
    elif case == "qwen3-vl-moe":  # released as [expert, in, out], which transformers 5.17 reads but does not write
        tensors = {name: tensor.transpose(1, 2).contiguous() if tensor.dim() == 3 and ".experts." in name else tensor
                   for name, tensor in load_file(path).items()}
    elif case in ("qwen3-next", "qwen3.5"):  # with multi-token prediction, which the class leaves aside
        generator = torch.Generator().manual_seed(6)
        tensors = load_file(path) | {name: torch.randn(shape, generator=generator) for name, shape in MTP.items()}
    else:
        return
    save_file(tensors, path, {"format": "pt"})


def load(folder, cls):
    """The checkpoint in the same class; every tensor must find its place and its shape."""
    model, said = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                      output_loading_info=True)
    wrong = {what: names for what, names in said.items() if names}
    if wrong:
        raise ValueError(f"{folder}: {wrong}")
    model.set_experts_implementation("eager")
    return model.eval()
