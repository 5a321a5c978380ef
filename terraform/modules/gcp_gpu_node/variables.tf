variable "autodl_available" {
  description = "True while the job has a card at AutoDL: then there is no machine here."
  type        = bool
}

variable "create_by_terraform" {
  description = "True lets `terraform apply` start the machine. False: only failover's claim starts one."
  type        = bool
  default     = false
}

variable "adopted_instance_id" {
  description = "Machine that was claimed and is adopted with an `import` block, `projects/P/zones/Z/instances/NAME`; null: none."
  type        = string
  default     = null

  validation {
    condition = var.adopted_instance_id == null || can(
      regex("^projects/[^/]+/zones/[a-z0-9-]+/instances/[a-z0-9-]+$", coalesce(var.adopted_instance_id, "!"))
    )
    error_message = "adopted_instance_id must look like projects/P/zones/us-central1-a/instances/NAME."
  }
}

variable "project" {
  description = "Project id."
  type        = string
}

variable "subnetwork" {
  description = "Subnetwork of the region module."
  type        = string
}

variable "network_tag" {
  description = "Network tag of the region module: it closes the machine to the world."
  type        = string
}

variable "service_account" {
  description = "E-mail of the account that the machine runs as."
  type        = string
}

variable "image" {
  description = "Machine image of the region module."
  type        = string
}

variable "zones" {
  description = "Zones that the machine may be in; empty: all."
  type        = list(string)
  default     = []
}

variable "name" {
  description = "Name of the machine; only read when Terraform starts the machine."
  type        = string
  default     = null

  validation {
    condition     = var.name == null || can(regex("^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", coalesce(var.name, "!")))
    error_message = "name must be 1 to 63 lower-case letters, digits or hyphens, and start with a letter."
  }
}

variable "zone" {
  description = "Zone, e.g. `us-central1-a`; only read when Terraform starts the machine."
  type        = string
  default     = null
}

variable "machine_type" {
  description = "Machine type, e.g. `g2-standard-4` or `n1-standard-8`; only read when Terraform starts the machine."
  type        = string
  default     = null
}

variable "accelerator" {
  description = "GPUs of an n1 machine, e.g. `{ type = \"nvidia-tesla-t4\", count = 1 }`; null for all others, which have theirs built in."
  type        = object({ type = string, count = number })
  default     = null
}

variable "spot" {
  description = "Spot machine instead of a standard one; only read when Terraform starts the machine."
  type        = bool
  default     = false
}

variable "max_run_s" {
  description = "Seconds after which Google deletes the machine, whatever else happens."
  type        = number
  default     = 86400

  validation {
    condition     = var.max_run_s >= 30 && var.max_run_s <= 10368000 && floor(var.max_run_s) == var.max_run_s
    error_message = "max_run_s must be a whole number from 30 to 10368000 (120 days)."
  }
}

variable "disk_gb" {
  description = "Size of the disk in GB. It is deleted with the machine."
  type        = number
  default     = 100

  validation {
    condition     = var.disk_gb >= 50 && var.disk_gb <= 65536 && floor(var.disk_gb) == var.disk_gb
    error_message = "disk_gb must be a whole number from 50 to 65536."
  }
}

variable "disk_type" {
  description = "Type of the disk; null: `pd-balanced`, or `hyperdisk-balanced` for the machines that take no other."
  type        = string
  default     = null
}

variable "secure_boot" {
  description = "Secure boot. It needs an image whose GPU driver is signed; Google's Deep Learning images build theirs."
  type        = bool
  default     = false
}

variable "user_data" {
  description = "Start script; only read when Terraform starts the machine. It may hold one short-lived link, no secret."
  type        = string
  default     = null
  sensitive   = true
}

variable "labels" {
  description = "Labels of a machine that Terraform starts, and of its disk."
  type        = map(string)
  default     = {}
}
