locals {
  own       = var.vpc == "own"
  zones     = length(var.zones) > 0 ? var.zones : (local.own ? data.aws_availability_zones.open[0].names : [])
  vpc_id    = local.own ? aws_vpc.own[0].id : data.aws_vpc.default[0].id
  partition = startswith(var.region, "cn-") ? "aws-cn" : startswith(var.region, "us-gov-") ? "aws-us-gov" : "aws"
  tags      = merge(var.tags, { Name = "failover-${var.name}" })

  # The value of a public parameter is no secret; the provider marks every parameter as one.
  image_id = var.ami_id == null ? nonsensitive(data.aws_ssm_parameter.image[0].value) : var.ami_id
}

# Network: the default VPC's public subnets, or an own VPC with one public subnet a zone.

data "aws_vpc" "default" {
  count   = local.own ? 0 : 1
  default = true
}

data "aws_subnets" "default" {
  count = local.own ? 0 : 1

  filter {
    name   = "vpc-id"
    values = [local.vpc_id]
  }

  filter {
    name   = "default-for-az"
    values = ["true"]
  }
}

data "aws_subnet" "default" {
  for_each = local.own ? toset([]) : toset(data.aws_subnets.default[0].ids)
  id       = each.value
}

data "aws_availability_zones" "open" {
  #checkov:skip=CKV_AWS_394:A new zone adds a subnet and moves none: each zone's range follows from its letter

  count = local.own && length(var.zones) == 0 ? 1 : 0
  state = "available"

  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

resource "aws_vpc" "own" {
  #checkov:skip=CKV2_AWS_11:Flow logs cost money for as long as the substrate waits; nothing can connect to these machines

  count                = local.own ? 1 : 0
  cidr_block           = var.vpc_cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = local.tags
}

resource "aws_default_security_group" "closed" {
  count  = local.own ? 1 : 0
  vpc_id = aws_vpc.own[0].id
  tags   = local.tags
}

resource "aws_internet_gateway" "own" {
  count  = local.own ? 1 : 0
  vpc_id = aws_vpc.own[0].id
  tags   = local.tags
}

resource "aws_subnet" "own" {
  #checkov:skip=CKV_AWS_130:A NAT gateway costs more than the disk; machines get an address of their own and no inbound port

  for_each                = toset(local.own ? local.zones : [])
  vpc_id                  = aws_vpc.own[0].id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.vpc_cidr, 4, index(split("", "abcdefghijklmnop"), substr(each.key, -1, 1)))
  map_public_ip_on_launch = true
  tags                    = local.tags
}

resource "aws_route_table" "own" {
  count  = local.own ? 1 : 0
  vpc_id = aws_vpc.own[0].id
  tags   = local.tags
}

resource "aws_route" "internet" {
  count                  = local.own ? 1 : 0
  route_table_id         = aws_route_table.own[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.own[0].id
}

resource "aws_route_table_association" "own" {
  for_each       = aws_subnet.own
  subnet_id      = each.value.id
  route_table_id = aws_route_table.own[0].id
}

# A prefix, not a name: a run that was killed between the cloud's answer and Terraform's note must not block the next.
resource "aws_security_group" "node" {
  #checkov:skip=CKV_AWS_382:A training job fetches data and packages from anywhere; inbound is closed
  #checkov:skip=CKV2_AWS_5:The launch template attaches it

  name_prefix = "failover-${var.name}-"
  description = "Machines of ${var.name}: out to anywhere, in from nowhere"
  vpc_id      = local.vpc_id
  tags        = local.tags

  egress {
    description      = "Object store, packages, data"
    from_port        = 0
    to_port          = 0
    protocol         = "-1"
    cidr_blocks      = ["0.0.0.0/0"]
    ipv6_cidr_blocks = ["::/0"]
  }

  dynamic "ingress" {
    for_each = var.ssh_cidr == null ? [] : [var.ssh_cidr]

    content {
      description      = "SSH for the operator"
      from_port        = 22
      to_port          = 22
      protocol         = "tcp"
      cidr_blocks      = strcontains(ingress.value, ":") ? [] : [ingress.value]
      ipv6_cidr_blocks = strcontains(ingress.value, ":") ? [ingress.value] : []
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}

# Role: the job's prefix in the bucket, and nothing else.

resource "aws_iam_role" "node" {
  count       = var.bucket == null ? 0 : 1
  name_prefix = "${substr(var.name, max(0, length(var.name) - 37), 37)}-"
  path        = "/failover/"
  description = "Machines of ${var.name} in ${var.region}: the job's prefix in its bucket"
  tags        = local.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = local.partition == "aws-cn" ? "ec2.amazonaws.com.cn" : "ec2.amazonaws.com" }
    }]
  })

  lifecycle {
    precondition {
      condition     = var.prefix != ""
      error_message = "With a bucket goes the prefix of the job in it: the role must not reach other jobs."
    }
  }
}

resource "aws_iam_role_policy" "store" {
  count = var.bucket == null ? 0 : 1
  name  = "store"
  role  = aws_iam_role.node[0].name

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect = "Allow"
        Action = [
          "s3:AbortMultipartUpload",
          "s3:DeleteObject",
          "s3:GetObject",
          "s3:ListMultipartUploadParts",
          "s3:PutObject",
        ]
        Resource = "arn:${local.partition}:s3:::${var.bucket}/${var.prefix}/*"
      },
      {
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = "arn:${local.partition}:s3:::${var.bucket}"
        Condition = { StringLike = { "s3:prefix" = ["${var.prefix}/*"] } }
      },
    ]
  })
}

resource "aws_iam_instance_profile" "node" {
  count       = var.bucket == null ? 0 : 1
  name_prefix = "failover-${var.name}-"
  path        = "/failover/"
  role        = aws_iam_role.node[0].name
  tags        = local.tags
}

# Launch template: what every machine has in common. The request adds type, subnet, market, user data and tags.

data "aws_ssm_parameter" "image" {
  count = var.ami_id == null ? 1 : 0
  name  = var.ami_ssm_parameter
}

# The disk below replaces the image's root disk only if it bears the same device name.
data "aws_ami" "image" {
  filter {
    name   = "image-id"
    values = [local.image_id]
  }
}

resource "aws_launch_template" "node" {
  #checkov:skip=CKV_AWS_341:A container on a bridge network is one hop further from the metadata service

  name_prefix                          = "failover-${var.name}-"
  description                          = "Machines of ${var.name}"
  update_default_version               = true
  image_id                             = local.image_id
  key_name                             = var.key_name
  instance_initiated_shutdown_behavior = "terminate"
  vpc_security_group_ids               = [aws_security_group.node.id]
  tags                                 = local.tags

  dynamic "iam_instance_profile" {
    for_each = aws_iam_instance_profile.node[*].arn

    content {
      arn = iam_instance_profile.value
    }
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 2
  }

  block_device_mappings {
    device_name = data.aws_ami.image.root_device_name

    ebs {
      volume_type           = "gp3"
      volume_size           = var.disk_gb
      encrypted             = "true"
      delete_on_termination = "true"
    }
  }

  dynamic "instance_market_options" {
    for_each = var.spot[*]

    content {
      market_type = "spot"

      spot_options {
        max_price                      = instance_market_options.value.max_price
        spot_instance_type             = "one-time"
        instance_interruption_behavior = "terminate"
      }
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume"]

    content {
      resource_type = tag_specifications.value
      tags          = local.tags
    }
  }
}
