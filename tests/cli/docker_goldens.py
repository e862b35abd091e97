"""Commands written out by hand: ours, and the reference's as they stand in QwenLM/Qwen @2df8e8a."""

OURS = """docker run \\
  -it \\
  --name=tengtune-a \\
  --network=host \\
  --ipc=host \\
  --device=/dev/davinci4 \\
  --device=/dev/davinci5 \\
  --device=/dev/davinci_manager \\
  --device=/dev/devmm_svm \\
  --device=/dev/hisi_hdc \\
  --user=1000:1000 \\
  -e ASCEND_VISIBLE_DEVICES=4,5 \\
  -e ASCEND_RT_VISIBLE_DEVICES=0,1 \\
  --mount type=bind,source=/usr/local/Ascend/driver,target=/usr/local/Ascend/driver,readonly \\
  --mount type=bind,source=/usr/local/dcmi,target=/usr/local/dcmi,readonly \\
  --mount type=bind,source=/usr/local/bin/npu-smi,target=/usr/local/bin/npu-smi,readonly \\
  --mount type=bind,source=/etc/ascend_install.info,target=/etc/ascend_install.info,readonly \\
  --mount type=bind,source=/etc/hccn.conf,target=/etc/hccn.conf,readonly \\
  --mount type=bind,source={folder},target={folder},readonly \\
  --mount type=bind,source={folder}/runs,target={folder}/runs \\
  --mount 'type=bind,source={parent}/base model,target={parent}/base model,readonly' \\
  --mount 'type=bind,source={parent}/数据/a.json,target={parent}/数据/a.json,readonly' \\
  -w {folder} \\
  quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.11 bash
"""

RECIPE = """docker run -it -u root --ipc=host \\
--device=/dev/davinci0 \\
--device=/dev/davinci1 \\
--device=/dev/davinci2 \\
--device=/dev/davinci3 \\
--device=/dev/davinci4 \\
--device=/dev/davinci5 \\
--device=/dev/davinci6 \\
--device=/dev/davinci7 \\
--device=/dev/davinci_manager \\
--device=/dev/devmm_svm \\
--device=/dev/hisi_hdc \\
-v /usr/local/Ascend/driver:/usr/local/Ascend/driver \\
-v /usr/local/Ascend/add-ons/:/usr/local/Ascend/add-ons/ \\
-v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi \\
-v /usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi \\
-v /etc/ascend_install.info:/etc/ascend_install.info \\
-v /var/log/npu/:/usr/slog \\
-v /etc/hccn.conf:/etc/hccn.conf \\
pai-image-manage-registry.cn-wulanchabu.cr.aliyuncs.com/pai/llm-inference:qwen_v23.0.rc3 /bin/bash
"""

DOCKER_QWEN = """docker run -it --rm -u root --network=host --ipc=host \\
    --device=/dev/davinci0 \\
    --device=/dev/davinci1 \\
    --device=/dev/davinci2 \\
    --device=/dev/davinci3 \\
    --device=/dev/davinci4 \\
    --device=/dev/davinci5 \\
    --device=/dev/davinci6 \\
    --device=/dev/davinci7 \\
    --name=qwen-mindspore \\
    --device=/dev/davinci_manager \\
    --device=/dev/devmm_svm \\
    --device=/dev/hisi_hdc \\
    -v /usr/local/Ascend/driver:/usr/local/Ascend/driver \\
    -v /usr/local/Ascend/add-ons/:/usr/local/Ascend/add-ons/ \\
    -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi \\
    -v /usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi \\
    -v /etc/ascend_install.info:/etc/ascend_install.info \\
    -v NOT_SET:/data/qwen/models/Qwen-7B-Chat \\
    -v /var/log/npu/:/usr/slog \\
    qwenllm/qwen-mindspore:v23.0.RC3 /bin/bash
"""
