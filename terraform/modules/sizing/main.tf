# What a machine type means for the settings of a node. No provider is needed.

locals {
  # Storage-optimized machines with one local NVMe disk: for more room take more machines, not more disks.
  # https://aws.amazon.com/ec2/instance-types/i4i/ and /i4g/; on-demand prices of Linux in us-east-1.
  machines = {
    "i4i.large"   = { vcpus = 2, memory_gib = 16, disk_gb = 468, architecture = "x86_64", dollars_an_hour = 0.172 }
    "i4i.xlarge"  = { vcpus = 4, memory_gib = 32, disk_gb = 937, architecture = "x86_64", dollars_an_hour = 0.343 }
    "i4i.2xlarge" = { vcpus = 8, memory_gib = 64, disk_gb = 1875, architecture = "x86_64", dollars_an_hour = 0.686 }
    "i4i.4xlarge" = { vcpus = 16, memory_gib = 128, disk_gb = 3750, architecture = "x86_64", dollars_an_hour = 1.373 }
    "i4g.large"   = { vcpus = 2, memory_gib = 16, disk_gb = 468, architecture = "arm64", dollars_an_hour = 0.15444 }
    "i4g.xlarge"  = { vcpus = 4, memory_gib = 32, disk_gb = 937, architecture = "arm64", dollars_an_hour = 0.30888 }
    "i4g.2xlarge" = { vcpus = 8, memory_gib = 64, disk_gb = 1875, architecture = "arm64", dollars_an_hour = 0.61776 }
    "i4g.4xlarge" = { vcpus = 16, memory_gib = 128, disk_gb = 3750, architecture = "arm64", dollars_an_hour = 1.23552 }
  }
  machine = local.machines[var.instance_type]

  # A node may exceed its disk budget by 10 %, and the file system takes some: 0.85 × 1.1 < 0.95.
  disk_budget_mib = floor(local.machine.disk_gb * pow(10, 9) * 0.85 / pow(1024, 2))
  # Of the machine's memory. The node stays below 115 % of it and 64 MiB; the rest is for the system and its page cache.
  ram_percent = 70

  entries = floor(local.disk_budget_mib * 1024 / var.entry_kib) * var.nodes
}
